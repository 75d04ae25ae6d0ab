"""Packing keeps every weight, bit for bit, in the size that its format promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu.build import variants
from kernels.cpu.packed import pack
from kernels.matrix import FloatMatrix, QuantizedMatrix
from tests.support.native import CODES, code_matrix, embed, float_matrix, matrices, use_library

SHAPES = [(1, 32), (15, 96), (16, 64), (33, 576), (5, 1), (17, 7), (40, 257), (3, 48)]


@pytest.fixture(params=variants())
def library(request, monkeypatch):
    return use_library(monkeypatch, request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_packed_matrix_gives_back_every_weight(library, shape):
    for name, matrix in matrices(*shape):
        weights = embed(library, pack(matrix, int8_activations=False), range(shape[0]))
        same = weights.view(np.uint32) == matrix.float32().view(np.uint32)
        assert same.all(), name


def test_every_half_precision_and_bfloat16_number_survives(library):
    numbers = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(256, 256)
    for matrix in (FloatMatrix(numbers.view(np.float16), "f16"), FloatMatrix(numbers, "bf16")):
        weights = embed(library, pack(matrix, int8_activations=False), range(256))
        expected = matrix.float32()
        numeric = ~np.isnan(expected)
        assert (np.isnan(weights) == ~numeric).all()
        assert (weights.view(np.uint32) == expected.view(np.uint32))[numeric].all()


def test_rows_are_picked_in_any_order_and_scaled(library):
    matrix = code_matrix(CODES[1], 50, 64, seed=3)
    ids = [49, 0, 17, 17, 32]
    rows = embed(library, pack(matrix, int8_activations=False), ids, scale=24.0)
    assert (rows == matrix.float32()[ids] * np.float32(24)).all()


def half_of(bits):
    return np.array(bits, np.uint16).view(np.float16).astype(np.float32)


FINITE_HALF = st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7C00 != 0x7C00).map(half_of)


@given(scale=FINITE_HALF, minimum=FINITE_HALF)
def test_scales_are_kept_in_half_precision_where_it_holds_them(scale, minimum):
    codes = np.arange(32, dtype=np.uint8)[None] % 16
    matrix = QuantizedMatrix(codes, np.array([[scale]]), np.array([[minimum]]), 32, 4)
    packed = pack(matrix, int8_activations=False)
    assert packed.struct.half_scales
    assert packed.nbytes == 16 * 32 // 2 + 2 * 16 * 2


@pytest.mark.parametrize("value", [1.0 + 2**-11, 65520.0, 2.0**-25, np.inf, np.nan, 3e38])
@pytest.mark.parametrize("where", ["scales", "minima"])
def test_scales_are_kept_in_fp32_where_half_precision_does_not_hold_them(library, where, value):
    one, other = np.ones((2, 1, 2), np.float32)
    (one if where == "scales" else other)[0, 1] = value
    codes = np.arange(64, dtype=np.uint8)[None] % 16
    matrix = QuantizedMatrix(codes, one, other, 32, 4)
    packed = pack(matrix, int8_activations=False)
    assert not packed.struct.half_scales
    with np.errstate(invalid="ignore", over="ignore"):
        expected = matrix.float32()
    np.testing.assert_array_equal(embed(library, packed, [0]), expected)


@pytest.mark.parametrize(
    ("matrix", "bits_per_weight", "name"),
    [
        (code_matrix((4, 32, True), 32, 64, 0), 5, "w4"),
        (code_matrix((4, 32, False), 32, 64, 0), 4.5, "w4"),
        (code_matrix((4, 32, True), 32, 64, 0, half=False), 6, "w4"),
        (code_matrix((8, 32, False), 32, 64, 0), 8.5, "w8"),
        (code_matrix((8, 16, False), 32, 64, 0, half=False), 10, "w8"),
        (float_matrix("f32", 32, 64, 0), 32, "f32"),
        (float_matrix("f16", 32, 64, 0), 16, "f16"),
        (float_matrix("bf16", 32, 64, 0), 16, "bf16"),
    ],
    ids=str,
)
def test_a_weight_takes_as_many_bits_as_its_format_says(matrix, bits_per_weight, name):
    packed = pack(matrix, int8_activations=False)
    assert packed.format == name
    assert packed.shape == (32, 64)
    assert packed.nbytes == 32 * 64 * bits_per_weight / 8
    assert packed.panels.ctypes.data % 64 == 0


def test_padding_is_zero_so_that_no_output_depends_on_what_memory_held(library):
    for name, matrix in matrices(17, 32):
        packed = pack(matrix, int8_activations=False)
        assert packed.num_panels == 2, name
        padding = packed.panels[packed.struct.panel_bytes :].reshape(-1, 16)
        # Whatever the size of a number, the last panel's only output takes one byte in 16 or more.
        assert np.count_nonzero(padding) <= padding.size // 16, name


def test_floats_always_multiply_floats(monkeypatch):
    packed = pack(float_matrix("f16", 4, 4, 0), int8_activations=True)
    assert not packed.int8_activations


def test_eight_bit_activations_are_refused_without_avx2(monkeypatch):
    use_library(monkeypatch, "plain")
    with pytest.raises(ValueError, match="8-bit activations need a processor with AVX2"):
        pack(code_matrix(CODES[0], 4, 32, 0), int8_activations=True)


def four_bits(**fields):
    good = {
        "codes": np.zeros((4, 64), np.uint8),
        "scales": np.ones((4, 2), np.float32),
        "minima": None,
        "block": 32,
        "bits": 4,
    }
    return QuantizedMatrix(**{**good, **fields})


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (four_bits(codes=np.zeros((4, 64), np.int8)), r"int8\(4, 64\) where uint8"),
        (four_bits(scales=np.ones((4, 3), np.float32)), r"float32\(4, 3\) where float32\(4, 2\)"),
        (four_bits(scales=np.ones((4, 2), np.float16)), r"float16\(4, 2\) where float32"),
        (four_bits(minima=np.ones((2, 2), np.float32)), r"float32\(2, 2\) where float32\(4, 2\)"),
        (four_bits(block=16, scales=np.ones((4, 4), np.float32)), "4-bit codes come in blocks of"),
        (four_bits(block=24), "64 columns are not whole blocks of 24, 16 or 32"),
        (four_bits(codes=np.zeros((4, 60), np.uint8)), "60 columns are not whole blocks"),
        (FloatMatrix(np.zeros((2, 2)), "f32"), r"float64\(2, 2\) where float32"),
    ],
)
def test_arrays_that_are_not_what_the_matrix_says_are_refused(matrix, message):
    with pytest.raises(ValueError, match=message):
        pack(matrix, int8_activations=False)


def test_a_bias_of_another_length_or_type_is_refused():
    matrix = float_matrix("f32", 4, 4, 0)
    for bias in (np.zeros(5, np.float32), np.zeros(4)):
        with pytest.raises(ValueError, match="a bias of 4 fp32 numbers is needed"):
            pack(matrix, int8_activations=False, bias=bias)
