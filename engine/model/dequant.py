"""Turns GGUF tensor bytes into fp32, bit for bit as ggml does, a chunk at a time.

Chunks keep the temporaries in the processor's cache and bound memory to the output plus a few MB.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from engine.protocol.text.ggml import GgmlType

_CHUNK_ELEMENTS = 1 << 18

_F32 = np.dtype("<f4")
_F16 = np.dtype("<f2")
Array = np.ndarray[Any, Any]


def dequantize(data: memoryview, kind: GgmlType, shape: tuple[int, ...]) -> torch.Tensor:
    """A new fp32 tensor of `shape`; `data` holds exactly its blocks. KeyError: unserved type."""
    decode = _DECODERS[kind]
    out = torch.empty(shape)
    flat = out.view(-1).numpy()
    blocks = np.frombuffer(data, np.uint8).reshape(-1, kind.block_bytes)
    step = _CHUNK_ELEMENTS // kind.block_elements
    rows = flat.reshape(-1, kind.block_elements)
    for at in range(0, len(blocks), step):
        decode(blocks[at : at + step], rows[at : at + step])
    return out


def _f32(blocks: Array, out: Array) -> None:
    out[:] = blocks.view(_F32)


def _f16(blocks: Array, out: Array) -> None:
    out[:] = blocks.view(_F16)


def _bf16(blocks: Array, out: Array) -> None:
    # bfloat16 is the upper half of a float32.
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q8_0(blocks: Array, out: Array) -> None:
    """Half scale, then 32 signed bytes."""
    out[:] = blocks[:, 2:].view(np.int8)
    out *= _scale(blocks, 0)


def _q4_0(blocks: Array, out: Array) -> None:
    """Half scale, then 16 bytes: low nibbles are elements 0-15, high ones 16-31; zero is 8."""
    _nibbles(blocks[:, 2:], out)
    out -= np.float32(8)
    out *= _scale(blocks, 0)


def _q4_1(blocks: Array, out: Array) -> None:
    """Half scale, half minimum, then nibbles as in Q4_0."""
    _nibbles(blocks[:, 4:], out)
    out *= _scale(blocks, 0)
    out += _scale(blocks, 2)


def _scale(blocks: Array, at: int) -> Array:
    """The half-precision number at byte `at` of every block, as an fp32 column."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(_F16).astype(np.float32)


def _nibbles(packed: Array, out: Array) -> None:
    out[:, :16] = packed & np.uint8(15)
    out[:, 16:] = packed >> np.uint8(4)


_DECODERS: dict[GgmlType, Callable[[Array, Array], None]] = {
    GgmlType.F32: _f32,
    GgmlType.F16: _f16,
    GgmlType.BF16: _bf16,
    GgmlType.Q8_0: _q8_0,
    GgmlType.Q4_0: _q4_0,
    GgmlType.Q4_1: _q4_1,
}
