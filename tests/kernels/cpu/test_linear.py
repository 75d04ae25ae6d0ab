"""Linear layers against fp64, and the order of their accumulation against a loop."""

import ctypes
import ctypes.util
import itertools
import platform

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.build import variants
from kernels.cpu.library import _load
from kernels.cpu.packed import pack
from tests.support.native import (
    CODES,
    Activations,
    code_matrix,
    float_matrix,
    linear,
    matrices,
    use_library,
)

SHAPES = [(1, 32), (16, 64), (33, 576), (5, 1), (17, 7), (40, 257), (100, 544)]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 13, 97]
EPSILON = 2.0**-24


@pytest.fixture(params=variants())
def library(request, monkeypatch):
    return use_library(monkeypatch, request.param)


@pytest.fixture
def avx2(monkeypatch):
    if "avx2" not in variants() or not _load("plain").evh_runs_avx2():
        pytest.skip("8-bit activations need AVX2")
    return use_library(monkeypatch, "avx2")


def draw(tokens, columns, seed=7):
    return np.random.default_rng(seed).standard_normal((tokens, columns), np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_right_for_every_format_and_number_of_tokens(library, shape):
    for name, matrix in matrices(*shape):
        weight = pack(matrix, int8_activations=False)
        exact = matrix.float32().astype(np.float64)
        for tokens in TOKENS:
            x = draw(tokens, shape[1])
            error = abs(linear(library, weight, x) - x @ exact.T)
            # Of a sum of n products, each rounded: Higham, Accuracy and Stability, section 3.1.
            bound = 2 * shape[1] * EPSILON * (abs(x) @ abs(exact).T)
            assert (error <= bound).all(), (name, tokens)


def fused(a, b, c):
    return libm.fmaf(a, b, c)


def separate(a, b, c):
    return np.float32(np.float32(a) * np.float32(b)) + np.float32(c)


libm = ctypes.CDLL(ctypes.util.find_library("m"))
libm.fmaf.restype, libm.fmaf.argtypes = ctypes.c_float, (ctypes.c_float,) * 3


@pytest.mark.parametrize("variant", variants())
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 7])
def test_columns_are_accumulated_in_order(monkeypatch, variant, tokens):
    library = use_library(monkeypatch, variant)
    on_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    accumulate = separate if on_x86 and variant == "plain" else fused
    x = draw(tokens, 288)
    for matrix in (float_matrix("f32", 3, 288, 1), code_matrix(CODES[1], 3, 288, 1)):
        weights = matrix.float32()
        expected = np.zeros((tokens, 3), np.float32)
        for token, row in np.ndindex(tokens, 3):
            for value, weight in zip(x[token], weights[row], strict=True):
                expected[token, row] = accumulate(weight, value, expected[token, row])
        assert (linear(library, pack(matrix, int8_activations=False), x) == expected).all()


def same_bits(a, b):
    return (a.view(np.uint32) == b.view(np.uint32)).all()


@pytest.mark.parametrize("tokens", [2, 3, 5, 6, 7, 8, 100, 193])
def test_a_token_alone_gives_what_it_gives_in_a_batch(library, tokens):
    x = draw(tokens, 320)
    for name, matrix in matrices(35, 320):
        weight = pack(matrix, int8_activations=False)
        together = linear(library, weight, x)
        for token in {0, 1, tokens // 2, tokens - 1}:
            alone = linear(library, weight, x[token : token + 1])
            assert same_bits(alone[0], together[token]), (name, token)


@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 9, 100, 193])
def test_a_token_alone_gives_what_it_gives_in_a_batch_with_8_bit_activations(avx2, tokens):
    x = draw(tokens, 320)
    for codes in CODES:
        weight = pack(code_matrix(codes, 35, 320, 0), int8_activations=True)
        together = linear(avx2, weight, x)
        for token in {0, 1, tokens // 2, tokens - 1}:
            alone = linear(avx2, weight, x[token : token + 1])
            assert same_bits(alone[0], together[token]), (codes, token)


@settings(max_examples=25)
@given(
    cuts=st.lists(st.integers(0, 7), max_size=6),
    order=st.randoms(use_true_random=False),
    tokens=st.sampled_from([1, 2, 4, 11]),
    variant=st.sampled_from(variants()),
)
def test_panels_may_be_dealt_in_any_way(cuts, order, tokens, variant):
    library = _load(variant)
    weight = pack(code_matrix(CODES[1], 7 * 16 - 3, 64, 2), int8_activations=False)
    edges = sorted({0, 7, *cuts})
    items = list(itertools.pairwise(edges))
    order.shuffle(items)
    x = draw(tokens, 64)
    assert same_bits(linear(library, weight, x, items=items), linear(library, weight, x))


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_a_bias_is_added_and_outputs_may_be_added_to(library, tokens):
    matrix = code_matrix(CODES[1], 37, 64, 4)
    x, bias, before = draw(tokens, 64), draw(1, 37, 5)[0], draw(tokens, 37, 6)
    plain = linear(library, pack(matrix, int8_activations=False), x)
    weight = pack(matrix, int8_activations=False, bias=bias)
    assert same_bits(linear(library, weight, x), plain + bias)
    added = linear(library, weight, x, out=before.copy(), add=True)
    assert same_bits(added, before + (plain + bias))


@pytest.mark.parametrize("tokens", [1, 3, 8])
def test_nothing_beside_the_outputs_is_written(library, tokens):
    weight = pack(code_matrix(CODES[1], 37, 64, 4), int8_activations=False)
    wide = np.full((tokens + 1, 50), -1, np.float32)
    linear(library, weight, draw(tokens, 64), out=wide[:tokens])
    assert (wide[:, 37:] == -1).all()
    assert (wide[tokens] == -1).all()
    assert same_bits(wide[:tokens, :37].copy(), linear(library, weight, draw(tokens, 64)))


@pytest.mark.parametrize("tokens", [2, 4, 9])
def test_what_is_not_a_number_stays_with_its_token(library, tokens):
    x = draw(tokens, 64)
    spoilt = x.copy()
    spoilt[1, 5] = np.nan
    for int8 in {False, library._name.endswith("avx2.so")}:
        weight = pack(code_matrix(CODES[1], 20, 64, 4), int8_activations=int8)
        clean, out = linear(library, weight, x), linear(library, weight, spoilt)
        assert np.isnan(out[1]).all()
        others = np.arange(tokens) != 1
        assert same_bits(out[others], clean[others])


finite = st.floats(-(2.0**40), 2.0**40, width=32)


@given(values=st.lists(finite, min_size=64, max_size=64), variant=st.sampled_from(variants()))
def test_codes_are_the_nearest_and_sums_are_theirs(values, variant):
    x = Activations(_load(variant), [values])
    blocks = x.values.reshape(2, 32).astype(np.float64)
    codes, scales = x.codes.reshape(2, 32), x.scales.reshape(2, 1).astype(np.float64)
    assert (abs(codes.astype(int)) <= 127).all()
    np.testing.assert_allclose(scales[:, 0], abs(blocks).max(1) / 127, rtol=1e-6, atol=2.0**-100)
    assert (abs(blocks - codes * scales) <= scales * 0.5001 + 2.0**-100).all()
    np.testing.assert_allclose(x.sums[0], (codes * scales).sum(1), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("variant", variants())
def test_a_block_that_is_not_finite_shows_it(variant, value):
    values = draw(1, 64)
    values[0, 40] = value
    x = Activations(_load(variant), values)
    assert np.isfinite(x.scales[0, 0])
    assert np.isnan(x.scales[0, 1])
    assert np.isnan(x.sums[0, 1])


@pytest.mark.parametrize("shape", [(1, 32), (16, 64), (33, 576), (100, 544)], ids=str)
def test_8_bit_activations_multiply_exactly_what_their_codes_say(avx2, shape):
    for tokens in TOKENS:
        values = draw(tokens, shape[1])
        x = Activations(avx2, values)
        rounded = x.codes.reshape(tokens, -1, 32) * x.scales[..., None].astype(np.float64)
        rounded = rounded.reshape(tokens, -1)
        for codes in CODES:
            for half in (True, False):
                matrix = code_matrix(codes, *shape, 0, half=half)
                exact = matrix.float32().astype(np.float64)
                out = linear(avx2, pack(matrix, int8_activations=True), values)
                span = abs(matrix.codes.astype(np.float64)) * np.repeat(
                    abs(matrix.scales.astype(np.float64)), matrix.block, 1
                )
                if matrix.minima is not None:
                    span += np.repeat(abs(matrix.minima), matrix.block, 1)
                bound = 8 * (shape[1] // 16 + 2) * EPSILON * (abs(rounded) @ span.T)
                assert (abs(out - rounded @ exact.T) <= bound).all(), (codes, tokens)


def test_8_bit_products_at_their_largest_do_not_overflow(avx2):
    values = np.ones((5, 64), np.float32)
    for bits, block, code in ((4, 32, 15), (8, 32, -128), (8, 32, 127), (8, 16, -128)):
        matrix = code_matrix((bits, block, False), 16, 64, 0)
        matrix.codes[:] = code
        matrix.scales[:] = 1
        for sign in (1, -1):
            out = linear(avx2, pack(matrix, int8_activations=True), sign * values)
            np.testing.assert_allclose(out, sign * code * 64, rtol=1e-6)
