"""Decoding against the gguf package's dequantisation, bit for bit, on any bytes."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model import dequant
from engine.protocol.text.ggml import GgmlType
from kernels.matrix import FloatMatrix

SUPPORTED = [kind for kind in GgmlType if kind.supported]
QUANTIZED = [kind for kind in SUPPORTED if kind.block_elements > 1]
FOUR_BITS = {GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q4_K}
BLOCKS_OF_16 = {GgmlType.Q2_K, GgmlType.Q3_K, GgmlType.Q6_K}
# Zeros, subnormals, the smallest normal, the largest, infinities and NaNs, with either sign.
EXTREME_HALVES = [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF]
EXTREME_HALVES += [half | 0x8000 for half in EXTREME_HALVES]


def rows_of(kind, rows, blocks, seed=0):
    """Any bytes whatever: that is, random halves, infinities and NaNs too."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (rows, blocks * kind.block_bytes), dtype=np.uint8)


def by_gguf(kind, data):
    with np.errstate(invalid="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind.name])


def assert_same(kind, data):
    with np.errstate(invalid="ignore"):
        got = dequant.decode(kind, data).float32()
    expected = by_gguf(kind, data)
    assert got.dtype == np.float32
    assert got.shape == expected.shape
    if kind is GgmlType.Q4_0:  # +0 for -0; and an infinite scale is not a number in any element
        infinite = np.isinf(got) | np.isinf(expected) | np.isnan(got)
        assert np.array_equal(np.isfinite(got), np.isfinite(expected))
        assert np.array_equal(got[~infinite], expected[~infinite])
        return
    number = ~np.isnan(expected)  # which of the NaNs it is, no one can tell in what follows
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("chunk", [1 << 17, 600])
def test_random_bytes_are_what_gguf_makes_of_them(kind, chunk, monkeypatch):
    monkeypatch.setattr(dequant, "_CHUNK_ELEMENTS", chunk)
    assert_same(kind, rows_of(kind, 31, 7))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_extreme_scales_are_what_gguf_makes_of_them(kind):
    data = rows_of(kind, len(EXTREME_HALVES) ** 2, 1, seed=1)
    pairs = np.array([(a, b) for a in EXTREME_HALVES for b in EXTREME_HALVES], "<u2")
    blocks = data.view(dequant._FORMATS[kind].layout)[:, 0]
    for field, column in {"d": 0, "m": 1, "dmin": 1}.items():
        if field in blocks.dtype.names:
            blocks[field] = np.ascontiguousarray(pairs[:, column]).view("<f2")
    assert_same(kind, data)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SUPPORTED), st.data())
def test_any_block_is_what_gguf_makes_of_it(kind, data):
    size = 2 * kind.block_bytes
    block = data.draw(st.binary(min_size=size, max_size=size))
    assert_same(kind, np.frombuffer(block, np.uint8).reshape(1, size))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_codes_and_scales_have_the_form_that_kernels_pack(kind):
    matrix = dequant.decode(kind, rows_of(kind, 6, 3))
    columns = 3 * kind.block_elements
    assert matrix.shape == (6, columns)
    assert matrix.bits == (4 if kind in FOUR_BITS else 8)
    assert matrix.codes.dtype == (np.uint8 if kind in FOUR_BITS else np.int8)
    assert matrix.bits == 8 or matrix.codes.max() < 16
    assert matrix.block == (16 if kind in BLOCKS_OF_16 else 32)
    for array in (matrix.scales, *([] if matrix.minima is None else [matrix.minima])):
        assert array.dtype == np.float32
        assert array.shape == (6, columns // matrix.block)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_a_code_times_its_scale_is_exact(kind):
    matrix = dequant.decode(kind, rows_of(kind, 16, 4, seed=2))
    scales = np.repeat(matrix.scales, matrix.block, axis=1).astype(np.float64)
    finite = np.isfinite(scales)
    products = matrix.codes[finite] * scales[finite]
    assert np.array_equal(products.astype(np.float32).astype(np.float64), products)


def test_floats_are_views_of_the_bytes():
    data = rows_of(GgmlType.BF16, 3, 8)
    matrix = dequant.decode(GgmlType.BF16, data)
    assert isinstance(matrix, FloatMatrix)
    assert matrix.shape == (3, 8)
    assert np.shares_memory(matrix.values, data)


def test_every_type_the_reader_calls_supported_is_decoded_and_no_other():
    assert set(dequant._FORMATS) | set(dequant._FLOATS) == set(SUPPORTED)
    with pytest.raises(KeyError):
        dequant.decode(GgmlType.Q8_1, rows_of(GgmlType.Q8_1, 1, 1))
