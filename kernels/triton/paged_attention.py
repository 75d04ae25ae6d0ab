"""Attention over pages for any mix of rows: of one token to decode, of several to prefill."""

import torch

from kernels.api import KvPages, TensorLayout
from kernels.layout import PagedLayer
from kernels.triton.attention_shape import (
    NO_WINDOW,
    AttentionShape,
    decode_launch,
    multiprocessors,
    splits,
)
from kernels.triton.decode_attention import decode_attention
from kernels.triton.prefill_attention import prefill_attention


def paged_attention(
    qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: TensorLayout, scale: float
) -> torch.Tensor:
    """See `kernels.api.Kernels.paged_attention`.

    Which rows have one token only the device knows: both kernels are given all rows and leave the
    other's alone. A batch of decodes is known to be one, and runs no other kernel.
    """
    shape = AttentionShape.of(qkv, pages)
    num_rows = layout.block_tables.shape[1]
    tile = decode_launch(shape).constants["TILE"]
    context = min(layout.longest_context, layer.window or NO_WINDOW)
    num_splits = splits(num_rows * shape.kv_heads, context, tile, multiprocessors(qkv.device))
    out = qkv.new_empty(len(qkv), shape.heads * shape.head_dim)
    decode_attention(qkv, pages, layer, layout, scale, num_splits, out)
    if layout.longest_row > 1:
        prefill_attention(qkv, pages, layer, layout, scale, out)
    return out
