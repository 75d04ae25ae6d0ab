"""Run as a program: kernels of a library with sanitizers in it, over shapes that divide nothing.

`python -m tests.support.sanitized LIBRARY` prints how many calls it made; the first access out of
bounds, and the first undefined operation, ends the process.
"""

import ctypes
import sys
from dataclasses import replace

import numpy as np

from kernels.cpu.structs import FUNCTIONS, address
from tests.support.paged import Sizes, attend, make_paged, naive_attention

FUNCTION_NAMES = (
    *("evh_attention", "evh_attention_items", "evh_attention_scratch"),
    *("evh_angles", "evh_gate", "evh_heads", "evh_rms_norm"),
)
ROWS = [(0, 1), (61, 1), (3, 19), (130, 7)]
NOWHERE = 2**30
"""A page that no memory has, for positions that nobody sees."""


def load(path):
    library = ctypes.CDLL(path)
    for name in FUNCTION_NAMES:
        function = getattr(library, name)
        function.restype, function.argtypes = FUNCTIONS[name]
    return library


def check_attention(library, sizes):
    paged = make_paged(ROWS, sizes)
    expected = naive_attention(paged)
    paged.layout.block_tables[paged.layout.block_tables == paged.no_page] = NOWHERE
    np.testing.assert_allclose(attend(library, paged), expected, rtol=1e-5, atol=1e-5)


def call_heads(library, sizes):
    paged = make_paged(ROWS, sizes)
    angles = np.zeros((2, len(paged.qkv), sizes.head_dim // 2), np.float32)
    norms = np.ones((2, sizes.head_dim), np.float32)
    tokens = len(paged.qkv)
    library.evh_heads(
        address(paged.qkv),
        sizes.heads,
        *map(address, norms),
        1e-6,
        *map(address, angles),
        paged.pages,
        paged.batch,
        0,
        tokens,
    )


def call_others(library, width):
    tokens = 3
    x, out = (np.ones((tokens, 2 * width), np.float32) for _ in range(2))
    weight = np.ones(2 * width, np.float32)
    for add in (0, 1):
        library.evh_rms_norm(
            address(x), address(weight), 1e-6, 2 * width, add, address(out), 0, tokens
        )
    gated = np.empty((tokens, width), np.float32)
    for activation in (0, 1):
        library.evh_gate(address(x), width, activation, address(gated), 0, tokens)
    positions = np.array([0, 7, 2**31 - 1], np.int32)
    cos, sin = np.empty((2, tokens, width), np.float32)
    frequencies = weight[:width].copy()
    library.evh_angles(
        address(positions),
        address(frequencies),
        1.0,
        width,
        address(cos),
        address(sin),
        0,
        tokens,
    )


def main(path):
    library, calls = load(path), 0
    for head_dim in (2, 30, 72):
        for page_size in (1, 3, 24, 130):
            for shared in (1, 7):
                sizes = Sizes(2, shared, head_dim, page_size)
                check_attention(library, sizes)
                check_attention(library, replace(sizes, window=9))
                call_heads(library, sizes)
                calls += 3
    for width in (1, 7, 8, 33, 64):
        call_others(library, width)
        calls += 1
    print(calls)


if __name__ == "__main__":
    main(sys.argv[1])
