"""Decodes the bytes of GGUF tensors into matrices of codes and scales, or of floats; exact.

A block of every quantised type has codes, and a scale (of some types a minimum too) per 16 or 32
of them. In K-quants those are small integers, to be multiplied by a half of the whole block: we do
that here, in fp32 and in ggml's order, so that a `QuantizedMatrix` has ggml's values bit for bit.
(But Q4_0 gives +0 where ggml may give -0: its codes are unsigned here, and the 8 comes off last.)

Layouts: ggml's block structs, https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from engine.protocol.text.ggml import GgmlType
from kernels.matrix import FloatMatrix, Matrix, QuantizedMatrix

Array = np.ndarray[Any, Any]

# Temporaries of a chunk stay in the processor's cache, and below the size that malloc asks the
# system for anew each time.
_CHUNK_ELEMENTS: Final = 1 << 17
_CODE_DTYPES: Final = {4: np.uint8, 8: np.int8}
_HIGH_RUN: Final = 32  # bytes
_FLOATS: Final[dict[GgmlType, tuple[str, Literal["f32", "f16", "bf16"]]]] = {
    GgmlType.F32: ("<f4", "f32"),
    GgmlType.F16: ("<f2", "f16"),
    GgmlType.BF16: ("<u2", "bf16"),
}


def decode(kind: GgmlType, data: Array) -> Matrix:
    """The matrix that `data` [rows, bytes of a row] uint8, contiguous, encodes.

    A float matrix is a view of `data`. KeyError: a type that is not served.
    """
    if kind in _FLOATS:
        dtype, name = _FLOATS[kind]
        return FloatMatrix(data.view(dtype), name)
    form = _FORMATS[kind]
    rows, row_bytes = data.shape
    columns = row_bytes // kind.block_bytes * kind.block_elements
    groups = (rows, columns // form.group)
    matrix = QuantizedMatrix(
        codes=np.empty((rows, columns), _CODE_DTYPES[form.bits]),
        scales=np.empty(groups, np.float32),
        minima=None if form.minima is None else np.empty(groups, np.float32),
        block=form.group,
        bits=form.bits,
    )
    _decode_blocks(form, data.reshape(-1, kind.block_bytes).view(form.layout)[:, 0], matrix)
    return matrix


def _decode_blocks(form: "_Format", blocks: Array, matrix: QuantizedMatrix) -> None:
    """Fill the matrix's arrays, a chunk of `blocks` [blocks of the tensor] at a time."""
    num_blocks = len(blocks)
    codes = matrix.codes.reshape(num_blocks, -1).view(np.uint8)
    scales = matrix.scales.reshape(num_blocks, -1)
    step = max(1, _CHUNK_ELEMENTS // codes.shape[1])
    with np.errstate(invalid="ignore"):  # infinity times zero: whoever minds looks at the scales
        for at in range(0, num_blocks, step):
            part = slice(at, at + step)
            form.codes.unpack(blocks[part], codes[part])
            scales[part] = form.scales(blocks[part])
            if matrix.minima is not None and form.minima is not None:
                matrix.minima.reshape(num_blocks, -1)[part] = form.minima(blocks[part])


@dataclass(frozen=True, slots=True)
class _Codes:
    """How the codes of a block are packed.

    The field `codes` has their lower `bits`, in runs of `run` bytes; the field `high`, where there
    are `high_bits`, those above, in runs of 32. The code that stands for zero is `zero`.
    """

    bits: int
    run: int
    high_bits: int = 0
    zero: int = 0

    def unpack(self, blocks: Array, out: Array) -> None:
        """Write codes [blocks, elements of a block] uint8, two's complement where `zero` is set."""
        _spread(_bytes(blocks["codes"]), self.bits, self.run, out)
        if self.high_bits:
            high = np.empty_like(out)
            self._unpack_high(_bytes(blocks["high"]), high)
            out |= np.left_shift(high, np.uint8(self.bits), out=high)
        if self.zero:
            out -= np.uint8(self.zero)

    def _unpack_high(self, packed: Array, out: Array) -> None:
        if packed.shape[1] < _HIGH_RUN:  # Q5: bit after bit
            out[:] = np.unpackbits(packed, axis=1, bitorder="little")
        else:
            _spread(packed, self.high_bits, _HIGH_RUN, out)


def _spread(packed: Array, bits: int, run: int, out: Array) -> None:
    """Take apart bytes [blocks, bytes] that hold several codes each.

    A run of bytes holds first the lowest bits of a run of codes, then, above them, the next run's.
    """
    item = np.dtype(f"V{run}")  # a run moves as one item, ten times as fast as byte by byte
    words = packed.reshape(-1).view(np.uint32)
    mask = np.uint32(0x01010101 * ((1 << bits) - 1))
    places = 8 // bits
    runs = out.reshape(-1).view(item).reshape(-1, places)
    for place in range(places):
        part = words >> np.uint32(bits * place)
        part &= mask
        runs[:, place] = part.view(item)


def _bytes(field: Array) -> Array:
    """A field of raw bytes [blocks] as uint8 [blocks, bytes], contiguous."""
    return np.ascontiguousarray(field).view(np.uint8).reshape(len(field), -1)


def _half(name: str, factor: float = 1) -> Callable[[Array], Array]:
    """The block's one half of that name, times a power of two: [blocks, 1] fp32."""
    return lambda blocks: blocks[name].astype(np.float32)[:, None] * np.float32(factor)


def _times(blocks: Array, name: str, integers: Array) -> Array:
    """The half times integers [blocks, n] of at most 8 bits, fp32, which holds them exactly."""
    product: Array = _half(name)(blocks) * integers.astype(np.float32)
    return product


def _q2_k_scales(blocks: Array) -> Array:
    return _times(blocks, "d", _bytes(blocks["scales"]) & np.uint8(15))


def _q2_k_minima(blocks: Array) -> Array:
    return -_times(blocks, "dmin", _bytes(blocks["scales"]) >> np.uint8(4))


def _q3_k_scales(blocks: Array) -> Array:
    """Sixteen of six bits, 32 standing for zero: the lower four in bytes 0-7, the rest in 8-11."""
    packed = _bytes(blocks["scales"])
    low, high = (np.empty((len(blocks), 16), np.uint8) for _ in range(2))
    _spread(np.ascontiguousarray(packed[:, :8]), 4, 8, low)
    _spread(np.ascontiguousarray(packed[:, 8:]), 2, 4, high)
    return _times(blocks, "d", (low | high << np.uint8(4)).view(np.int8) - np.int8(32))


def _q6_k_scales(blocks: Array) -> Array:
    return _times(blocks, "d", _bytes(blocks["scales"]).view(np.int8))


def _q45_k_scales(blocks: Array) -> Array:
    """Eight of six bits: four in bytes 0-3, four in low nibbles of 8-11 and top bits of 0-3."""
    packed = _bytes(blocks["scales"])
    first, rest = packed[:, :4], packed[:, 8:] & np.uint8(15)
    return _times(blocks, "d", _six_bits(first, rest))


def _q45_k_minima(blocks: Array) -> Array:
    """As the scales, from bytes 4-7 and high nibbles."""
    packed = _bytes(blocks["scales"])
    first, rest = packed[:, 4:8], packed[:, 8:] >> np.uint8(4)
    return -_times(blocks, "dmin", _six_bits(first, rest))


def _six_bits(first: Array, rest: Array) -> Array:
    top = first >> np.uint8(2) & np.uint8(48)
    return np.concatenate([first & np.uint8(63), rest | top], axis=1)


@dataclass(frozen=True, slots=True)
class _Format:
    """A quantised type: its block as a numpy struct, and how to read one.

    `scales` and `minima` give those of blocks [n] as fp32 [n, per block], one for `group` codes.
    """

    layout: np.dtype[Any]
    codes: _Codes
    bits: Literal[4, 8]
    group: Literal[16, 32]
    scales: Callable[[Array], Array]
    minima: Callable[[Array], Array] | None = None


def _layout(**fields: str) -> np.dtype[Any]:
    return np.dtype(list(fields.items()))


_FORMATS: Final[dict[GgmlType, _Format]] = {
    GgmlType.Q4_0: _Format(
        _layout(d="<f2", codes="V16"), _Codes(4, 16), 4, 32, _half("d"), _half("d", -8)
    ),
    GgmlType.Q4_1: _Format(
        _layout(d="<f2", m="<f2", codes="V16"), _Codes(4, 16), 4, 32, _half("d"), _half("m")
    ),
    GgmlType.Q5_0: _Format(
        _layout(d="<f2", high="V4", codes="V16"),
        _Codes(4, 16, high_bits=1, zero=16),
        8,
        32,
        _half("d"),
    ),
    GgmlType.Q5_1: _Format(
        _layout(d="<f2", m="<f2", high="V4", codes="V16"),
        _Codes(4, 16, high_bits=1),
        8,
        32,
        _half("d"),
        _half("m"),
    ),
    GgmlType.Q8_0: _Format(_layout(d="<f2", codes="V32"), _Codes(8, 32), 8, 32, _half("d")),
    GgmlType.Q2_K: _Format(
        _layout(scales="V16", codes="V64", d="<f2", dmin="<f2"),
        _Codes(2, 32),
        8,  # no kernel takes 4-bit codes in groups of 16
        16,
        _q2_k_scales,
        _q2_k_minima,
    ),
    GgmlType.Q3_K: _Format(
        _layout(high="V32", codes="V64", scales="V12", d="<f2"),
        _Codes(2, 32, high_bits=1, zero=4),
        8,
        16,
        _q3_k_scales,
    ),
    GgmlType.Q4_K: _Format(
        _layout(d="<f2", dmin="<f2", scales="V12", codes="V128"),
        _Codes(4, 32),
        4,
        32,
        _q45_k_scales,
        _q45_k_minima,
    ),
    GgmlType.Q5_K: _Format(
        _layout(d="<f2", dmin="<f2", scales="V12", high="V32", codes="V128"),
        _Codes(4, 32, high_bits=1),
        8,
        32,
        _q45_k_scales,
        _q45_k_minima,
    ),
    GgmlType.Q6_K: _Format(
        _layout(codes="V128", high="V64", scales="V16", d="<f2"),
        _Codes(4, 64, high_bits=2, zero=32),
        8,
        16,
        _q6_k_scales,
    ),
}
