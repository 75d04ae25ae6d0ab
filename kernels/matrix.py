"""A weight matrix as its file holds it, before a device packs it: floats, or codes with scales.

numpy only, so that a CPU engine need not load torch.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """`values` [rows, columns]: float32 or float16, or for "bf16" uint16 holding the bits."""

    values: Array
    kind: Literal["f32", "f16", "bf16"]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, columns = self.values.shape
        return rows, columns

    def float32(self) -> Array:
        """The values [rows, columns]; exact."""
        if self.kind == "bf16":  # the upper half of a float32
            return (self.values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return self.values.astype(np.float32)


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """Element [r, c] is `codes[r, c] * scales[r, c // block] + minima[r, c // block]`, in fp32.

    `codes` [rows, columns] is uint8 below 16 when `bits` is 4, int8 when it is 8; `scales` and
    `minima` [rows, columns / block] are fp32, minima None where all are zero; `block` is 16 or 32.
    The product of a code and a scale is exact in fp32, so fused and separate addition agree.
    """

    codes: Array
    scales: Array
    minima: Array | None
    block: int
    bits: Literal[4, 8]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, columns = self.codes.shape
        return rows, columns

    def float32(self) -> Array:
        """The values [rows, columns], bit for bit as ggml dequantises them."""
        rows, columns = self.codes.shape
        blocks = self.codes.reshape(rows, columns // self.block, self.block)
        out = blocks.astype(np.float32)
        out *= self.scales[..., None]
        if self.minima is not None:
            out += self.minima[..., None]
        return out.reshape(rows, columns)


Matrix = FloatMatrix | QuantizedMatrix
