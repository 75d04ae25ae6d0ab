"""RMSNorm (Zhang and Sennrich 2019): `x / sqrt(mean(x²) + eps) * weight`, computed in fp32.

x is [R, M, C] in any strides with C innermost and dense: a batch's hidden states are [N, 1, C], the
query heads inside a batch's qkv are [N, H, D]. The result is dense. One program normalizes `ROWS`
of the R * M rows, each of them held whole in registers.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.jit import Launch, Signature, kernel

MAX_WIDTH = 16384
"""The widest row: with 16 warps, 32 elements a thread."""

_TILE = 2048  # elements a program holds when rows are short


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The last dimension of x normalized, in x's dtype; `weight` [C] may be of another.

    Raises ValueError for rows beyond `MAX_WIDTH` or that are not dense.
    """
    width = x.shape[-1]
    if width > MAX_WIDTH or (width > 1 and x.stride(-1) != 1):
        raise ValueError(f"rows must be dense and at most {MAX_WIDTH} wide, not {width}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    outer = x if x.ndim == 3 else x.reshape(-1, 1, width)
    rows = outer.shape[0] * outer.shape[1]
    how = launch(width, outer.shape[1])
    rms_norm_kernel[(triton.cdiv(rows, how.constants["ROWS"]),)](
        outer, weight, out, rows, outer.stride(0), outer.stride(1), eps, **how.keywords()
    )
    return out


def launch(width: int, inner: int) -> Launch:
    """Rows of `width`, `inner` of them between two outer strides."""
    columns = triton.next_power_of_2(width)
    constants = {
        "INNER": inner,
        "WIDTH": width,
        "ROWS": max(1, _TILE // columns),
        "COLUMNS": columns,
    }
    return Launch(constants, num_warps=min(16, max(4, columns // 1024)), num_stages=1)


@kernel(changing=["num_rows"])
def rms_norm_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    outer_stride: tl.tensor,
    inner_stride: tl.tensor,
    eps: tl.tensor,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """out[r, :] for `ROWS` rows r = i * INNER + j, of which x has [i, j, :]."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < WIDTH)[None, :]
    starts = (rows // INNER) * outer_stride + (rows % INNER) * inner_stride
    values = tl.load(x + starts[:, None] + columns[None, :], mask, 0.0).to(tl.float32)
    means = tl.sum(values * values, 1) / WIDTH
    factors = tl.load(weight + columns, columns < WIDTH, 0.0).to(tl.float32)
    normed = values * tl.rsqrt(means + eps)[:, None] * factors[None, :]
    tl.store(out + rows[:, None] * WIDTH + columns[None, :], normed.to(out.dtype.element_ty), mask)


def signatures() -> list[Signature]:
    """Hidden states of 4,096 and the widest, and heads of 128 inside their qkv."""
    return [
        Signature(
            f"rms_norm of {inner} x {width} {dtype}",
            rms_norm_kernel,
            {
                "x": f"*{dtype}",
                "weight": f"*{dtype}",
                "out": f"*{dtype}",
                "num_rows": "i32",
                "outer_stride": "i32",
                "inner_stride": "i32",
                "eps": "fp32",
            },
            launch(width, inner),
            aligned=("x", "weight", "out", "outer_stride", "inner_stride"),
        )
        for inner, width in ((1, 4096), (1, MAX_WIDTH), (32, 128))
        for dtype in ("bf16", "fp32")
    ]
