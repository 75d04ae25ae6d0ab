"""Run as a program: linear layers whose arrays all end where no memory may be touched.

`python -m tests.support.guarded VARIANT` prints how many products it computed; a kernel that reads
or writes past an array ends the process.
"""

import ctypes
import mmap
import sys

import numpy as np

from kernels.cpu import packed, structs
from kernels.cpu.library import _load
from tests.support.native import matrices

TOKENS = (1, 2, 3, 4, 5, 7, 100)
SHAPES = ((1, 32), (16, 64), (33, 320), (17, 7), (40, 1), (5, 288))
_libc = ctypes.CDLL(None, use_errno=True)
_kept = []  # mappings live as long as the process: the arrays do not own them


def guarded(array):
    """A copy of the array that ends at a page nobody may touch."""
    page = mmap.PAGESIZE
    room = -(-array.nbytes // page) * page
    mapping = mmap.mmap(-1, room + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    if _libc.mprotect(ctypes.c_void_p(start + room), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    _kept.append(mapping)
    copy = np.frombuffer(mapping, array.dtype, array.size, room - array.nbytes)
    copy[:] = array.ravel()
    return copy


def multiply(library, weight, tokens):
    rows, columns = weight.shape
    values = guarded(np.ones((tokens, columns), np.float32))
    codes = guarded(np.zeros((tokens, columns), np.int8))
    scales, sums = (guarded(np.zeros((tokens, columns // 32), np.float32)) for _ in range(2))
    out = guarded(np.zeros((tokens, rows), np.float32))
    scratch = guarded(np.zeros(library.evh_linear_scratch(tokens), np.float32))
    pointers = [array.ctypes.data for array in (values, codes, scales, sums)]
    if columns % 32 == 0:
        library.evh_quantize(pointers[0], columns, *pointers[1:], 0, tokens)
    x = structs.Activations(*pointers, tokens, columns)
    library.evh_linear(
        ctypes.byref(weight.struct),
        ctypes.byref(x),
        out.ctypes.data,
        rows,
        0,
        scratch.ctypes.data,
        0,
        weight.num_panels,
    )


def embed(library, weight):
    rows, columns = weight.shape
    ids = guarded(np.array([rows - 1, 0], np.int32))
    out = guarded(np.zeros((2, columns), np.float32))
    library.evh_embed(
        ctypes.byref(weight.struct), ids.ctypes.data, 1.0, out.ctypes.data, 0, len(ids)
    )


def main(variant):
    library = _load(variant)
    packed.native = lambda: library
    packed.chosen_variant = lambda: variant
    products = 0
    for rows, columns in SHAPES:
        for _name, matrix in matrices(rows, columns):
            for int8 in {False, variant == "avx2" and columns % 32 == 0}:
                bias = guarded(np.ones(rows, np.float32))
                weight = packed.pack(matrix, int8_activations=int8, bias=bias)
                panels = guarded(weight.panels)
                weight.struct.panels, weight.struct.bias = panels.ctypes.data, bias.ctypes.data
                embed(library, weight)
                for tokens in TOKENS:
                    multiply(library, weight, tokens)
                    products += 1
    print(products)


if __name__ == "__main__":
    main(sys.argv[1])
