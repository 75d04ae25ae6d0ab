"""Weights packed for the native CPU kernels: the memory, and the struct that points to it.

The layouts are drawn in `native/pack.h`. Packing reads each weight once, so that nothing but the
packed form need stay in memory.
"""

import ctypes
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kernels.cpu import structs
from kernels.cpu.library import chosen_variant, native
from kernels.matrix import Array, FloatMatrix, Matrix, QuantizedMatrix

_ALIGNMENT: Final = 64  # a cache line
_FLOATS: Final[dict[str, tuple[int, np.dtype[Any]]]] = {
    "f32": (structs.F32, np.dtype(np.float32)),
    "f16": (structs.F16, np.dtype(np.float16)),
    "bf16": (structs.BF16, np.dtype(np.uint16)),
}
_CODES: Final[dict[int, tuple[int, np.dtype[Any]]]] = {
    4: (structs.W4, np.dtype(np.uint8)),
    8: (structs.W8, np.dtype(np.int8)),
}
_FP32: Final = np.dtype(np.float32)
_NAMES: Final = {
    structs.F32: "f32",
    structs.F16: "f16",
    structs.BF16: "bf16",
    structs.W4: "w4",
    structs.W8: "w8",
}


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight [rows, columns] that the kernels read, with its bias; owns the memory of both."""

    struct: structs.Matrix
    panels: Array
    bias: Array | None

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.struct.rows, self.struct.columns

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weights take, padding included."""
        return int(self.panels.nbytes)

    @property
    def num_panels(self) -> int:
        """How many items a linear layer with this weight has."""
        return _num_panels(self.struct)

    @property
    def format(self) -> str:
        """`f32`, `f16`, `bf16`, `w4` or `w8`."""
        return _NAMES[self.struct.format]

    @property
    def int8_activations(self) -> bool:
        """Whether this weight multiplies 8-bit activations, not fp32 ones."""
        return bool(self.struct.int8)


def pack(matrix: Matrix, *, int8_activations: bool, bias: Array | None = None) -> PackedMatrix:
    """Pack a weight and its `bias` fp32 [rows]; quantised ones for 8-bit activations on request.

    Weights kept as floats always multiply fp32 activations. Raises ValueError for arrays that are
    not what the matrix says, or for 8-bit activations where no kernel takes them.
    """
    rows, _ = matrix.shape
    if bias is not None and (bias.shape != (rows,) or bias.dtype != _FP32):
        raise ValueError(f"a bias of {rows} fp32 numbers is needed, not {bias.dtype}{bias.shape}")
    if isinstance(matrix, FloatMatrix):
        packed = _pack_floats(matrix)
    else:
        packed = _pack_codes(matrix, int8_activations=int8_activations)
    if bias is None:
        return packed
    kept = np.ascontiguousarray(bias).copy()
    packed.struct.bias = kept.ctypes.data
    return PackedMatrix(packed.struct, packed.panels, kept)


def _pack_floats(matrix: FloatMatrix) -> PackedMatrix:
    kind, dtype = _FLOATS[matrix.kind]
    rows, columns = matrix.shape
    values = _checked(matrix.values, (rows, columns), dtype)
    struct = structs.Matrix(rows=rows, columns=columns, format=kind)
    panels = _allocate(struct)
    native().evh_pack_floats(
        ctypes.byref(struct), values.ctypes.data, panels.ctypes.data, 0, _num_panels(struct)
    )
    return PackedMatrix(struct, panels, None)


def _pack_codes(matrix: QuantizedMatrix, *, int8_activations: bool) -> PackedMatrix:
    kind, dtype = _CODES[matrix.bits]
    rows, columns = matrix.shape
    _check_blocks(matrix, int8_activations=int8_activations)
    per_block = (rows, columns // matrix.block)
    codes = _checked(matrix.codes, (rows, columns), dtype)
    scales = _checked(matrix.scales, per_block, _FP32)
    minima = None if matrix.minima is None else _checked(matrix.minima, per_block, _FP32)
    struct = structs.Matrix(
        rows=rows,
        columns=columns,
        format=kind,
        block=matrix.block,
        half_scales=_fits_half(scales) and (minima is None or _fits_half(minima)),
        has_minimum=minima is not None,
        int8=int8_activations,
    )
    panels = _allocate(struct)
    native().evh_pack_codes(
        ctypes.byref(struct),
        codes.ctypes.data,
        scales.ctypes.data,
        None if minima is None else minima.ctypes.data,
        panels.ctypes.data,
        0,
        _num_panels(struct),
    )
    return PackedMatrix(struct, panels, None)


def _check_blocks(matrix: QuantizedMatrix, *, int8_activations: bool) -> None:
    _, columns = matrix.shape
    if matrix.block not in {16, 32} or columns % matrix.block:
        raise ValueError(f"{columns} columns are not whole blocks of {matrix.block}, 16 or 32")
    if matrix.bits == 4 and matrix.block != 32:
        raise ValueError("4-bit codes come in blocks of 32")
    if not int8_activations:
        return
    if chosen_variant() != "avx2":
        raise ValueError("8-bit activations need a processor with AVX2")
    if columns % 32:
        raise ValueError(f"8-bit activations come in blocks of 32: {columns} columns are not")


def _checked(array: Array, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """The array, contiguous; ValueError unless it has this shape and type."""
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{array.dtype}{array.shape} where {dtype}{shape} is needed")
    return np.ascontiguousarray(array)


def _fits_half(values: Array) -> bool:
    return bool(native().evh_fits_half(values.ctypes.data, values.size))


def _num_panels(struct: structs.Matrix) -> int:
    return -(-int(struct.rows) // structs.PANEL)


def _allocate(struct: structs.Matrix) -> Array:
    """Memory for the panels, which the struct then points to."""
    struct.panel_bytes = native().evh_panel_bytes(ctypes.byref(struct))
    needed = _num_panels(struct) * struct.panel_bytes
    memory = np.empty(needed + _ALIGNMENT, np.uint8)
    panels = memory[-memory.ctypes.data % _ALIGNMENT :][:needed]
    struct.panels = panels.ctypes.data
    return panels
