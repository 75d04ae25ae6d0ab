"""Paged attention of rows of one token: each row's context is split, then put together again.

Decoding reads every key and value once and computes little, so what counts is that all of the GPU
reads. One program takes one key/value head of one row and one of `num_splits` equal runs of the
row's tiles; the query heads of that head are the rows of its products, padded to `M`. With several
splits, a program writes its normalised result and the logarithm of its softmax's denominator, and
`combine_splits` weighs them (flash decoding: Dao, Haziza, Massa, Sizov 2023).

Shapes: `qkv` [N, (H + 2G) * D] and `out` [N, H * D] of one type; `keys` [pages, G, D, S] and
`values` [pages, G, S, D] of one layer; `table` [rows, table_width] int32 of one group; `row_starts`
[rows + 1] and `first_positions` [rows] int32; `partial` [rows, H, num_splits, D] and `log_sums`
[rows, H, num_splits] fp32. Rows of several tokens are left alone, as `prefill_attention` takes
them. The reference is `ReferenceKernels.paged_attention`.
"""

import torch
import triton.language as tl

from kernels.api import KvPages, TensorLayout
from kernels.layout import PagedLayer
from kernels.triton.attention_shape import (
    LOG2_E,
    MAX_SPLITS,
    NO_WINDOW,
    ONE_SHAPE_A_HEAD_SIZE,
    TYPICAL_SHAPES,
    AttentionShape,
    decode_launch,
)
from kernels.triton.jit import Launch, Signature, kernel
from kernels.triton.paged_tile import LOWEST, fold, load_keys, load_values, tile_pages


def decode_attention(
    qkv: torch.Tensor,
    pages: KvPages,
    layer: PagedLayer,
    layout: TensorLayout,
    scale: float,
    num_splits: int,
    out: torch.Tensor,
) -> None:
    """`Kernels.paged_attention` into `out`, for rows of one token.

    A context is split into `num_splits` runs, at most `MAX_SPLITS`.
    """
    shape = AttentionShape.of(qkv, pages)
    table = layout.block_tables[layer.group]
    num_rows = len(table)
    parts = (num_rows, shape.heads, num_splits) if num_splits > 1 else (0, 0, 0)
    partial = torch.empty(*parts, shape.head_dim, dtype=torch.float32, device=qkv.device)
    log_sums = torch.empty(parts, dtype=torch.float32, device=qkv.device)
    decode_attention_kernel[num_splits, shape.kv_heads, num_rows](
        qkv,
        pages.keys[layer.index],
        pages.values[layer.index],
        table,
        layout.row_starts,
        layout.first_positions,
        out,
        partial,
        log_sums,
        scale * LOG2_E,
        layer.window or NO_WINDOW,
        table.stride(0),
        num_splits,
        **decode_launch(shape).keywords(),
    )
    if num_splits > 1:
        combine_splits_kernel[shape.heads, num_rows](
            partial, log_sums, layout.row_starts, out, num_splits, **_combine(shape).keywords()
        )


@kernel(
    changing=["window", "table_width", "num_splits"],
    unaligned=["table", "row_starts", "first_positions"],
)
def decode_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    row_starts: tl.tensor,
    first_positions: tl.tensor,
    out: tl.tensor,
    partial: tl.tensor,
    log_sums: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    table_width: tl.tensor,
    num_splits: tl.tensor,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    S: tl.constexpr,
    M: tl.constexpr,
    TILE: tl.constexpr,
    PRODUCTS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> None:
    """Attend one row's token to one run of its tiles; grid (num_splits, G, rows)."""
    split, group, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    token = tl.load(row_starts + row)
    if tl.load(row_starts + row + 1) - token != 1:
        return
    end = tl.load(first_positions + row) + 1
    start = tl.maximum(end - window, 0)
    first_tile, past_tile = start // TILE, (end + TILE - 1) // TILE
    run = (past_tile - first_tile + num_splits - 1) // num_splits
    first_tile += split * run
    past_tile = tl.minimum(past_tile, first_tile + run)

    heads, dims = tl.arange(0, M), tl.arange(0, D_PAD)
    shared: tl.constexpr = H // G
    real = heads < shared
    mask = real[:, None] & (dims < D)[None, :]
    heads += group * shared
    place = (row * H + heads) * num_splits + split
    if first_tile >= past_tile:
        tl.store(log_sums + place, tl.full([M], float("-inf"), tl.float32), mask=real)
        return

    queries = qkv + token.to(tl.int64) * ((H + 2 * G) * D)
    query = tl.load(queries + heads[:, None] * D + dims[None, :], mask=mask, other=0.0)
    query = query.to(PRODUCTS)

    peak = tl.full([M], LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, D_PAD], tl.float32)
    table += row * table_width
    keys += group * D * S
    values += group * D * S
    for tile in range(first_tile, past_tile):
        pages, held = tile_pages(table, tile, start, end, S, TILE)
        position = tile * TILE + tl.arange(0, TILE)
        visible = (position >= start) & (position < end)
        key = load_keys(keys, pages, held, tile, G * D * S, D, D_PAD, S, TILE)
        value = load_values(values, pages, visible, tile, G * D * S, D, D_PAD, S, TILE)
        scores = tl.dot(query, key.to(PRODUCTS), input_precision=PRECISION) * scale
        scores = tl.where(visible[None, :], scores, float("-inf"))
        peak, total, sums = fold(scores, value, peak, total, sums, PRODUCTS, PRECISION)

    result = sums / total[:, None]
    if num_splits == 1:
        outputs = out + (token.to(tl.int64) * H + heads[:, None]) * D + dims[None, :]
        tl.store(outputs, result.to(out.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + place[:, None] * D + dims[None, :], result, mask=mask)
        tl.store(log_sums + place, peak + tl.log2(total), mask=real)


@kernel(changing=["num_splits"], unaligned=["row_starts"])
def combine_splits_kernel(
    partial: tl.tensor,
    log_sums: tl.tensor,
    row_starts: tl.tensor,
    out: tl.tensor,
    num_splits: tl.tensor,
    H: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Weigh the results of a row's splits by their softmax sums; grid (H, rows)."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = tl.load(row_starts + row)
    if tl.load(row_starts + row + 1) - token != 1:
        return
    split, dims = tl.arange(0, SPLITS), tl.arange(0, D_PAD)
    place = (row * H + head) * num_splits + split
    log_sum = tl.load(log_sums + place, mask=split < num_splits, other=float("-inf"))
    weight = tl.exp2(log_sum - tl.max(log_sum, axis=0))
    mask = (log_sum > float("-inf"))[:, None] & (dims < D)[None, :]
    results = tl.load(partial + place[:, None] * D + dims[None, :], mask=mask, other=0.0)
    result = tl.sum(results * weight[:, None], axis=0) / tl.sum(weight, axis=0)
    outputs = out + (token.to(tl.int64) * H + head) * D
    tl.store(outputs + dims, result.to(out.dtype.element_ty), mask=dims < D)


def _combine(shape: AttentionShape) -> Launch:
    constants = {
        "H": shape.heads,
        "D": shape.head_dim,
        "D_PAD": shape.padded_dim,
        "SPLITS": MAX_SPLITS,
    }
    return Launch(constants, num_warps=max(1, shape.padded_dim // 32), num_stages=1)


def signatures() -> list[Signature]:
    """For ahead-of-time compilation."""
    attention = [
        Signature(
            f"decode_attention {shape.name}",
            decode_attention_kernel,
            {
                **dict.fromkeys(("qkv", "keys", "values", "out"), f"*{shape.type_name}"),
                **dict.fromkeys(("table", "row_starts", "first_positions"), "*i32"),
                **dict.fromkeys(("partial", "log_sums"), "*fp32"),
                "scale": "fp32",
                **dict.fromkeys(("window", "table_width", "num_splits"), "i32"),
            },
            decode_launch(shape),
            aligned=("qkv", "keys", "values", "out", "partial", "log_sums"),
        )
        for shape in TYPICAL_SHAPES
    ]
    combination = [
        Signature(
            f"combine_splits {shape.name}",
            combine_splits_kernel,
            {
                **dict.fromkeys(("partial", "log_sums"), "*fp32"),
                "row_starts": "*i32",
                "out": f"*{shape.type_name}",
                "num_splits": "i32",
            },
            _combine(shape),
            aligned=("partial", "log_sums", "out"),
        )
        for shape in ONE_SHAPE_A_HEAD_SIZE
    ]
    return attention + combination
