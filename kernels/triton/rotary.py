"""Rotary position embedding (Su et al. 2021), half-split, in place; computed in fp32.

qkv is [N, (H + 2G) * D], dense: per token its heads of D = 2 * half elements, of which the first
`num_heads` are rotated. cos and sin are [N, half]: element i of a head pairs with i + half. One
program rotates up to `HEADS` heads of one token.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.jit import Launch, Signature, kernel

_TILE = 1024  # pairs a program rotates


def rotary(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int) -> None:
    """See `kernels.api.Kernels.rotary`; qkv, cos and sin are dense."""
    if not len(qkv):
        return
    how = launch(num_heads, cos.shape[-1])
    grid = (len(qkv), triton.cdiv(num_heads, how.constants["HEADS"]))
    rotary_kernel[grid](qkv, cos, sin, qkv.stride(0), **how.keywords())


def launch(num_heads: int, half: int) -> Launch:
    """`num_heads` heads of twice `half` elements."""
    padded = triton.next_power_of_2(half)
    heads = min(triton.next_power_of_2(num_heads), max(1, _TILE // padded))
    constants = {"NUM_HEADS": num_heads, "HEADS": heads, "HALF": half, "PADDED": padded}
    return Launch(constants, num_warps=4, num_stages=1)


@kernel()
def rotary_kernel(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    token_stride: tl.tensor,
    NUM_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """Token `program_id(0)`, heads from `program_id(1) * HEADS`."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pairs = tl.arange(0, PADDED)
    mask = (heads < NUM_HEADS)[:, None] & (pairs < HALF)[None, :]
    c = tl.load(cos + token * HALF + pairs, pairs < HALF, 0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * HALF + pairs, pairs < HALF, 0.0).to(tl.float32)[None, :]
    low = qkv + token * token_stride + heads[:, None] * (2 * HALF) + pairs[None, :]
    high = low + HALF
    a = tl.load(low, mask, 0.0).to(tl.float32)
    b = tl.load(high, mask, 0.0).to(tl.float32)
    tl.store(low, (a * c - b * s).to(qkv.dtype.element_ty), mask)
    tl.store(high, (b * c + a * s).to(qkv.dtype.element_ty), mask)


def signatures() -> list[Signature]:
    """32 query and 8 key heads of 128, and Gemma 3's 4 and 1 of 256."""
    return [
        Signature(
            f"rotary of {num_heads} heads of {head_dim} {dtype}",
            rotary_kernel,
            {"qkv": f"*{dtype}", "cos": "*fp32", "sin": "*fp32", "token_stride": "i32"},
            launch(num_heads, head_dim // 2),
            aligned=("qkv", "cos", "sin", "token_stride"),
        )
        for num_heads, head_dim in ((40, 128), (5, 256))
        for dtype in ("bf16", "fp32")
    ]
