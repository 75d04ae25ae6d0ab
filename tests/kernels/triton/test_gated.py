import pytest
import torch
from torch.nn import functional

from kernels.triton.gated import gated
from tests.support.paged_tensors import DEVICE

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
ACTIVATIONS = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 7, 1024, 1536, 2050])
def test_every_width_is_gated(dtype, activation, width):
    generator = torch.Generator().manual_seed(width)
    gate_up = (torch.randn(3, 2 * width, generator=generator) * 4).to(DEVICE, dtype)
    gate, up = gate_up.double().chunk(2, -1)
    expected = ACTIVATIONS[activation](gate) * up
    result = gated(gate_up, activation)
    assert result.dtype == dtype
    assert result.shape == (3, width)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_gates_are_open_or_shut(activation):
    gate_up = torch.tensor([[88.0, 1e4, -88.0, -1e4, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]], device=DEVICE)
    gate, up = gate_up.double().chunk(2, -1)
    expected = ACTIVATIONS[activation](gate) * up
    torch.testing.assert_close(gated(gate_up, activation).double(), expected, rtol=2e-6, atol=1e-30)


def test_no_tokens_are_no_work():
    assert gated(torch.empty(0, 8), "silu").shape == (0, 4)
