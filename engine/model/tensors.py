"""A tensor as a model's file stores it: checked bytes that are read and decoded when asked for."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np

from engine.model.dequant import decode
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.ggml import GgmlType
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.model_file import ModelFile
from kernels.matrix import FloatMatrix, Matrix

Array = np.ndarray[Any, Any]

_CHECKED_AT_ONCE: Final = 1 << 15  # elements; they stay in the processor's cache
# The exponent bits, all of them set in infinities and NaNs alone.
_EXPONENTS: Final[dict[str, np.unsignedinteger[Any]]] = {
    "f32": np.uint32(0x7F800000),
    "f16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
}


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """Bytes of `file` from `offset`: `shape` outermost first, the last dimension in whole blocks.

    Whoever makes one has checked that they lie inside the file and that the type is served.
    `order` [rows] is which stored row each row is, None where every row is itself.
    """

    file: ModelFile
    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    order: Array | None = None

    def rows(self, order: Array) -> "StoredTensor":
        """The tensor whose row i is row `order[i]` of this one, a permutation; nothing is read."""
        return replace(self, order=order if self.order is None else self.order[order])

    def data(self) -> Array:
        """Its bytes, a new array [rows, bytes of a row] uint8; raises ModelFileError."""
        row_bytes = self.shape[-1] // self.type.block_elements * self.type.block_bytes
        data = np.empty((prod(self.shape[:-1]), row_bytes), np.uint8)
        self.file.read_into(self.offset, data)
        return data if self.order is None else data[self.order]

    def matrix(self) -> Matrix:
        """The weights [rows, columns], the caller's own.

        Raises ModelFileError for a file that became shorter, and for infinities and NaNs: they
        would spread to every number the model computes.
        """
        matrix = decode(self.type, self.data())
        if not _finite(matrix):
            raise ModelFileError(
                self.file.path, f"tensor {self.name!r} holds values that are not finite"
            )
        return matrix

    def vector(self) -> Array:
        """The weights of a tensor of one dimension, fp32, the caller's own; raises as `matrix`."""
        return self.matrix().float32().reshape(-1)


def gguf_tensor(file: GgufFile, name: str) -> StoredTensor:
    """A tensor of a GGUF file; raises ModelFileError when absent or of an unserved type."""
    info = file.find(name)
    return StoredTensor(file.file, name, info.shape, info.type, info.offset)


def _finite(matrix: Matrix) -> bool:
    if isinstance(matrix, FloatMatrix):
        return _finite_bits(matrix.values, matrix.kind)
    minima = matrix.scales if matrix.minima is None else matrix.minima
    return _finite_bits(matrix.scales, "f32") and _finite_bits(minima, "f32")


def _finite_bits(values: Array, kind: str) -> bool:
    exponent = _EXPONENTS[kind]
    bits = values.reshape(-1).view(exponent.dtype)
    return all(
        (bits[at : at + _CHECKED_AT_ONCE] & exponent).max() != exponent
        for at in range(0, len(bits), _CHECKED_AT_ONCE)
    )
