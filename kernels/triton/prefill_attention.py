"""Paged attention of rows of several tokens: a prompt, or a chunk of one behind a cached prefix.

One program takes one key/value head and up to `M // (H / G)` consecutive tokens of one row: each
row of its products is one query head of one token. It walks the row's tiles from the first position
that its first token's window reaches to its last token's own, with an online softmax (flash
attention: Dao 2023), so that new tokens attend to the prefix in its pages and to each other alike:
`store_kv` came first.

Programs are laid over the batch as if each row began a new block of tokens: row r's blocks start at
number `row_starts[r] // BLOCK + r`, which leaves it at least as many as it needs; those it does not
need return at once. Thus the grid follows from the number of tokens and rows alone.

Shapes: `qkv` [N, (H + 2G) * D] and `out` [N, H * D] of one type; `keys` [pages, G, D, S] and
`values` [pages, G, S, D] of one layer; `table` [rows, table_width] int32 of one group; `row_starts`
[rows + 1] and `first_positions` [rows] int32. Rows of one token are left alone, as
`decode_attention` takes them. A row's own new values must be finite: what a later one of its tokens
holds is multiplied by zero for an earlier one. The reference is `ReferenceKernels.paged_attention`.
"""

import torch
import triton.language as tl

from kernels.api import KvPages, TensorLayout
from kernels.layout import PagedLayer
from kernels.triton.attention_shape import (
    LOG2_E,
    NO_WINDOW,
    TYPICAL_SHAPES,
    AttentionShape,
    prefill_launch,
)
from kernels.triton.jit import Signature, inlined, kernel
from kernels.triton.paged_tile import LOWEST, fold, load_keys, load_values, tile_pages


def prefill_attention(
    qkv: torch.Tensor,
    pages: KvPages,
    layer: PagedLayer,
    layout: TensorLayout,
    scale: float,
    out: torch.Tensor,
) -> None:
    """`Kernels.paged_attention` into `out`, for rows of several tokens."""
    shape = AttentionShape.of(qkv, pages)
    launch = prefill_launch(shape)
    table = layout.block_tables[layer.group]
    num_rows = len(table)
    block = launch.constants["M"] // (shape.heads // shape.kv_heads)
    prefill_attention_kernel[shape.kv_heads, len(qkv) // block + num_rows](
        qkv,
        pages.keys[layer.index],
        pages.values[layer.index],
        table,
        layout.row_starts,
        layout.first_positions,
        out,
        scale * LOG2_E,
        layer.window or NO_WINDOW,
        table.stride(0),
        num_rows,
        **launch.keywords(),
    )


@inlined
def row_of_block(
    row_starts: tl.tensor, block: tl.tensor, num_rows: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """The last row whose blocks start at or before `block`, by bisection."""
    row, past = num_rows * 0, num_rows
    while past - row > 1:
        middle = (row + past) // 2
        begun = tl.load(row_starts + middle) // BLOCK + middle <= block
        row = tl.where(begun, middle, row)
        past = tl.where(begun, past, middle)
    return row


@kernel(
    changing=["window", "table_width", "num_rows"],
    unaligned=["table", "row_starts", "first_positions"],
)
def prefill_attention_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    row_starts: tl.tensor,
    first_positions: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    table_width: tl.tensor,
    num_rows: tl.tensor,
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
    """Attend one block of a row's tokens to all they see; grid (G, blocks)."""
    shared: tl.constexpr = H // G
    BLOCK: tl.constexpr = M // shared
    # Later blocks see more: they start first, so that none of them is left alone at the end.
    group, block = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    row = row_of_block(row_starts, block, num_rows, BLOCK).to(tl.int64)
    first_token = tl.load(row_starts + row)
    count = tl.load(row_starts + row + 1) - first_token
    skipped = (block - first_token // BLOCK - row.to(tl.int32)) * BLOCK
    if (count == 1) | (skipped >= count):
        return

    token = skipped + tl.arange(0, M) // shared
    head = group * shared + tl.arange(0, M) % shared
    dims = tl.arange(0, D_PAD)
    real = (tl.arange(0, M) < BLOCK * shared) & (token < count)
    mask = real[:, None] & (dims < D)[None, :]
    batch_token = (first_token + token).to(tl.int64)
    queries = qkv + (batch_token * (H + 2 * G) + head)[:, None] * D + dims[None, :]
    query = tl.load(queries, mask=mask, other=0.0).to(PRODUCTS)

    before = tl.load(first_positions + row)
    position = before + token
    start = tl.maximum(before + skipped + 1 - window, 0)
    end = before + tl.minimum(skipped + BLOCK, count)
    peak = tl.full([M], LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, D_PAD], tl.float32)
    table += row * table_width
    keys += group * D * S
    values += group * D * S
    for tile in range(start // TILE, (end + TILE - 1) // TILE):
        pages, held = tile_pages(table, tile, start, end, S, TILE)
        other = tile * TILE + tl.arange(0, TILE)
        key = load_keys(keys, pages, held, tile, G * D * S, D, D_PAD, S, TILE)
        scores = tl.dot(query, key.to(PRODUCTS), input_precision=PRECISION) * scale
        distance = position[:, None] - other[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
        visible = (other >= start) & (other < end)
        value = load_values(values, pages, visible, tile, G * D * S, D, D_PAD, S, TILE)
        peak, total, sums = fold(scores, value, peak, total, sums, PRODUCTS, PRECISION)

    outputs = out + (batch_token * H + head)[:, None] * D + dims[None, :]
    tl.store(outputs, (sums / total[:, None]).to(out.dtype.element_ty), mask=mask)


def signatures() -> list[Signature]:
    """For ahead-of-time compilation."""
    return [
        Signature(
            f"prefill_attention {shape.name}",
            prefill_attention_kernel,
            {
                **dict.fromkeys(("qkv", "keys", "values", "out"), f"*{shape.type_name}"),
                **dict.fromkeys(("table", "row_starts", "first_positions"), "*i32"),
                "scale": "fp32",
                **dict.fromkeys(("window", "table_width", "num_rows"), "i32"),
            },
            prefill_launch(shape),
            aligned=("qkv", "keys", "values", "out"),
            may_spill=True,
        )
        for shape in TYPICAL_SHAPES
    ]
