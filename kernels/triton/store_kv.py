"""Write each token's keys and values into the page slot of its position.

Shapes: `qkv` [N, (H + 2G) * D]; `keys` [pages, G, D, S] and `values` [pages, G, S, D] of one layer;
`table` [rows, table_width] int32 of one group; `positions` [N] int64 and `rows` [N] int32. One
program takes `BLOCK` tokens and one key/value head. A page has its tokens innermost for keys, so
they are turned on the way: neighbours in a row are then written together. The reference is
`ReferenceKernels.store_kv`.
"""

import torch
import triton
import triton.language as tl

from kernels.api import KvPages, TensorLayout
from kernels.layout import PagedLayer
from kernels.triton.attention_shape import ONE_SHAPE_A_HEAD_SIZE, AttentionShape
from kernels.triton.jit import Launch, Signature, kernel

_BLOCK = 16


def store_kv(qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: TensorLayout) -> None:
    """See `kernels.api.Kernels.store_kv`."""
    table = layout.block_tables[layer.group]
    launch = _launch(AttentionShape.of(qkv, pages))
    store_kv_kernel[triton.cdiv(len(qkv), _BLOCK), pages.num_kv_heads](
        qkv,
        pages.keys[layer.index],
        pages.values[layer.index],
        table,
        layout.positions,
        layout.rows,
        table.stride(0),
        len(qkv),
        **launch.keywords(),
    )


@kernel(changing=["table_width", "num_tokens"], unaligned=["table", "positions", "rows"])
def store_kv_kernel(
    qkv: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    positions: tl.tensor,
    rows: tl.tensor,
    table_width: tl.tensor,
    num_tokens: tl.tensor,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    S: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Store `BLOCK` tokens of one key/value head; grid (blocks of tokens, G)."""
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    group = tl.program_id(1)
    real = token < num_tokens
    position = tl.load(positions + token, mask=real, other=0)
    row = tl.load(rows + token, mask=real, other=0).to(tl.int64)
    page = tl.load(table + row * table_width + position // S, mask=real, other=0).to(tl.int64)
    slot = position % S

    dims = tl.arange(0, D_PAD)
    mask = real[:, None] & (dims < D)[None, :]
    source = qkv + (token * (H + 2 * G) + H + group)[:, None] * D + dims[None, :]
    value = tl.load(source + G * D, mask=mask, other=0.0)
    head = (page * G + group) * (D * S)
    tl.store(values + (head + slot * D)[:, None] + dims[None, :], value, mask=mask)

    key = tl.trans(tl.load(source, mask=mask, other=0.0))
    turned = (dims < D)[:, None] & real[None, :]
    tl.store(keys + (head + slot)[None, :] + (dims * S)[:, None], key, mask=turned)


def _launch(shape: AttentionShape) -> Launch:
    constants = {
        "H": shape.heads,
        "G": shape.kv_heads,
        "D": shape.head_dim,
        "D_PAD": shape.padded_dim,
        "S": shape.page_size,
        "BLOCK": _BLOCK,
    }
    return Launch(constants, num_warps=4, num_stages=1)


def signatures() -> list[Signature]:
    """For ahead-of-time compilation."""
    return [
        Signature(
            f"store_kv {shape.name}",
            store_kv_kernel,
            {
                **dict.fromkeys(("qkv", "keys", "values"), f"*{shape.type_name}"),
                **dict.fromkeys(("table", "rows"), "*i32"),
                "positions": "*i64",
                **dict.fromkeys(("table_width", "num_tokens"), "i32"),
            },
            _launch(shape),
            aligned=("qkv", "keys", "values"),
        )
        for shape in ONE_SHAPE_A_HEAD_SIZE
    ]
