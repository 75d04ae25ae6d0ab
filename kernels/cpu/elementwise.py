"""The small per-token kernels on the CPU: norm, rotation, storing keys and values.

Shapes and layouts are those of `kernels.api`; each has its twin in `kernels.reference`.
"""

# ruff: noqa: PLR0917 - compiled kernels take arrays and sizes by position

from typing import Any

import numpy as np

from kernels.cpu.jit import kernel


@kernel("void(f4[:,::1], f4[::1], f8, f4[:,::1])")
def rms_norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    """`out = x / sqrt(mean(x²) + eps) * weight`, row by row."""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = np.float32(0)
        for i in range(width):
            total += x[row, i] * x[row, i]
        scale = np.float32(1.0 / np.sqrt(total / width + eps))
        for i in range(width):
            out[row, i] = x[row, i] * scale * weight[i]


@kernel("void(f4[:,::1], f4[:,::1], f4[:,::1], i8)")
def rotary(qkv: Any, cos: Any, sin: Any, num_heads: int) -> None:
    """Rotate the first `num_heads` heads of every token in place; element i pairs with i + D/2."""
    half = cos.shape[1]
    for token in range(qkv.shape[0]):
        for head in range(num_heads):
            at = head * 2 * half
            for i in range(half):
                low = qkv[token, at + i]
                high = qkv[token, at + half + i]
                qkv[token, at + i] = low * cos[token, i] - high * sin[token, i]
                qkv[token, at + half + i] = high * cos[token, i] + low * sin[token, i]


@kernel("void(f4[:,::1], f4[:,:,:,::1], f4[:,:,:,::1], i4[::1], i4[::1], i4[:,::1])")
def store_kv(
    qkv: Any, keys: Any, values: Any, row_starts: Any, first_positions: Any, block_tables: Any
) -> None:
    """Write every token's keys and values to the page slot of its position (one layer's pages)."""
    heads, dim, page_size = keys.shape[1:]
    first_key = qkv.shape[1] - 2 * heads * dim
    for row in range(first_positions.shape[0]):
        for token in range(row_starts[row], row_starts[row + 1]):
            position = first_positions[row] + token - row_starts[row]
            page = block_tables[row, position // page_size]
            slot = position % page_size
            for head in range(heads):
                at = first_key + head * dim
                for i in range(dim):
                    keys[page, head, i, slot] = qkv[token, at + i]
                    values[page, head, slot, i] = qkv[token, at + heads * dim + i]
