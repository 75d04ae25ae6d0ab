import pytest
import torch

from kernels.reference import ReferenceKernels
from kernels.triton.rotary import rotary
from tests.support.paged_tensors import DEVICE

TOLERANCES = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("dim", [2, 16, 64, 80, 96, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (9, 3), (40, 8)])
def test_queries_and_keys_are_rotated_and_values_left(dtype, dim, heads, kv_heads):
    generator = torch.Generator().manual_seed(dim)
    qkv = torch.randn(3, (heads + 2 * kv_heads) * dim, generator=generator).to(DEVICE, dtype)
    angles = torch.rand(3, dim // 2, generator=generator).to(DEVICE) * 100
    expected = qkv.double()
    ReferenceKernels().rotary(
        expected, angles.cos().double(), angles.sin().double(), heads + kv_heads
    )
    values = qkv[:, (heads + kv_heads) * dim :].clone()
    rotary(qkv, angles.cos(), angles.sin(), heads + kv_heads)
    assert qkv[:, (heads + kv_heads) * dim :].equal(values)
    torch.testing.assert_close(qkv.double(), expected, rtol=0, atol=TOLERANCES[dtype] * 4)


def test_no_tokens_are_no_work():
    rotary(torch.empty(0, 48), torch.empty(0, 8), torch.empty(0, 8), 2)
