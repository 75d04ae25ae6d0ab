import pytest
import torch

from kernels.triton.rms_norm import MAX_WIDTH, rms_norm
from tests.support.paged_tensors import DEVICE

# Of values below 4: half a unit in the last place, and for fp32 what sums in another order make.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def exact(x, weight, eps):
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("width", [1, 8, 576, 640, 1000, 4096, 5120, MAX_WIDTH])
def test_rows_of_any_width_are_normalized(dtype, width):
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(3, width, generator=generator).to(DEVICE, dtype)
    weight = torch.rand(width, generator=generator).to(DEVICE, dtype)
    result = rms_norm(x, weight, 1e-6)
    assert result.dtype == dtype
    torch.testing.assert_close(
        result.double(), exact(x, weight, 1e-6), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
    )


@pytest.mark.parametrize("heads", [1, 3, 9])
@pytest.mark.parametrize("dim", [16, 80, 128])
def test_heads_are_normalized_inside_their_qkv(heads, dim):
    qkv = torch.randn(5, (heads + 2) * dim, device=DEVICE)
    weight = torch.rand(dim, device=DEVICE)
    inside = qkv[:, dim : (heads + 1) * dim].unflatten(-1, (heads, dim))
    result = rms_norm(inside, weight, 1e-5)
    assert result.shape == (5, heads, dim)
    assert result.is_contiguous()
    torch.testing.assert_close(result.double(), exact(inside, weight, 1e-5), rtol=2e-6, atol=2e-6)


def test_the_weight_may_be_of_another_type():
    x, weight = torch.randn(4, 64).to(DEVICE, torch.bfloat16), torch.rand(64, device=DEVICE)
    result = rms_norm(x, weight, 1e-6)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result.double(), exact(x, weight, 1e-6), rtol=8e-3, atol=8e-3)


def test_large_halves_do_not_overflow():
    x = torch.full((2, 64), 60000.0, dtype=torch.float16, device=DEVICE)
    assert rms_norm(x, torch.ones(64, device=DEVICE), 1e-6).eq(1).all()


def test_no_rows_give_no_rows():
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)


def test_rows_that_are_too_wide_or_not_dense_are_refused():
    with pytest.raises(ValueError, match="at most 16384"):
        rms_norm(torch.ones(1, MAX_WIDTH + 1), torch.ones(MAX_WIDTH + 1), 1e-6)
    with pytest.raises(ValueError, match="dense"):
        rms_norm(torch.ones(8, 4).T, torch.ones(8), 1e-6)
