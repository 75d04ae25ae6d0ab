"""What the tests of native kernels share: each compiled library, and matrices of every format."""

import ctypes

import numpy as np

from kernels.cpu import packed, structs
from kernels.cpu.library import _load
from kernels.matrix import FloatMatrix, QuantizedMatrix

FLOATS = ("f32", "f16", "bf16")
# (bits, block, whether it has minima): Q4_0; Q4_1, Q4_K; Q8_0, Q5_0; Q5_1, Q5_K; Q6_K; Q2_K.
CODES = (
    *((4, 32, False), (4, 32, True)),
    *((8, 32, False), (8, 32, True), (8, 16, False), (8, 16, True)),
)


def use_library(monkeypatch, variant):
    """Make `pack` use one instruction set's library, and return it."""
    library = _load(variant)
    monkeypatch.setattr(packed, "native", lambda: library)
    monkeypatch.setattr(packed, "chosen_variant", lambda: variant)
    return library


def float_matrix(kind, rows, columns, seed):
    values = np.random.default_rng(seed).standard_normal((rows, columns), np.float32)
    if kind == "bf16":
        return FloatMatrix((values.view(np.uint32) >> 16).astype(np.uint16), "bf16")
    return FloatMatrix(values.astype(np.float32 if kind == "f32" else np.float16), kind)


def code_matrix(codes, rows, columns, seed, *, half=True):
    """Random codes; scales of both signs, which half precision holds or does not."""
    bits, block, has_minima = codes
    draw = np.random.default_rng(seed)
    values = draw.standard_normal((2, rows, columns // block), np.float32)
    if half:
        values = values.astype(np.float16).astype(np.float32)
    else:  # 17 bits, as the product of a half-precision and a six-bit number has
        values = (values.view(np.uint32) & np.uint32(0xFFFFFF80)).view(np.float32)
    codes = draw.integers(0, 16, (rows, columns), np.uint8)
    if bits == 8:
        codes = draw.integers(-128, 128, (rows, columns), np.int8)
    return QuantizedMatrix(codes, values[0], values[1] if has_minima else None, block, bits)


def matrices(rows, columns, seed=0):
    """One matrix of every format that this many columns allow, by name."""
    for kind in FLOATS:
        yield kind, float_matrix(kind, rows, columns, seed)
    for codes in CODES:
        if columns % codes[1] == 0:
            for half in (True, False):
                name = "w{}/{}{}{}".format(*codes[:2], "+min" * codes[2], "" if half else " fp32")
                yield name, code_matrix(codes, rows, columns, seed, half=half)


class Activations:
    """fp32 values [tokens, columns] with their 8-bit form where the columns allow it."""

    def __init__(self, library, values):
        self.values = np.ascontiguousarray(values, np.float32)
        tokens, columns = self.values.shape
        self.codes = np.zeros((tokens, columns), np.int8)
        self.scales, self.sums = np.zeros((2, tokens, columns // 32), np.float32)
        arrays = (self.values, self.codes, self.scales, self.sums)
        pointers = [array.ctypes.data for array in arrays]
        if columns % 32 == 0:
            library.evh_quantize(pointers[0], columns, *pointers[1:], 0, tokens)
        self.struct = structs.Activations(*pointers, tokens, columns)


def linear(library, weight, values, *, out=None, add=False, items=None):
    """evh_linear over items, dealt as [(first, past), ...]; the panels in order unless told."""
    x = Activations(library, values)
    if out is None:
        out = np.full((len(x.values), weight.shape[0]), np.nan, np.float32)
    scratch = np.full(library.evh_linear_scratch(len(x.values)), np.nan, np.float32)
    for first, past in items or [(0, weight.num_panels)]:
        library.evh_linear(
            ctypes.byref(weight.struct),
            ctypes.byref(x.struct),
            out.ctypes.data,
            out.strides[0] // 4,
            int(add),
            scratch.ctypes.data,
            first,
            past,
        )
    return out


def embed(library, weight, ids, scale=1.0):
    ids = np.asarray(ids, np.int32)
    out = np.full((len(ids), weight.shape[1]), np.nan, np.float32)
    library.evh_embed(
        ctypes.byref(weight.struct), ids.ctypes.data, scale, out.ctypes.data, 0, len(ids)
    )
    return out
