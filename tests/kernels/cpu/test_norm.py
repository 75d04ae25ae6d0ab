"""Native RMS norms against double precision."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernels.cpu.structs import address

EPS = 1e-5


def normed(native, x, weight, *, eps=EPS, onto=None, shares=None):
    out = np.full_like(x, np.nan) if onto is None else onto.copy()
    tokens, width = x.shape
    for first, past in shares or [(0, tokens)]:
        native.evh_rms_norm(
            address(x),
            address(weight),
            eps,
            width,
            onto is not None,
            address(out),
            first,
            past,
        )
    return out


def expected(x, weight):
    mean_square = np.square(x, dtype=np.float64).mean(-1, keepdims=True)
    return x / np.sqrt(mean_square + EPS) * weight


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


@given(tokens=st.integers(1, 9), width=st.integers(1, 140), exponent=st.integers(-12, 12))
def test_rms_norm_is_right_for_any_width_and_magnitude(native, tokens, width, exponent):
    x = random(width, tokens, width) * np.float32(10.0**exponent)
    weight = random(1, width)
    assert_allclose(normed(native, x, weight), expected(x, weight), rtol=1e-6, atol=1e-30)


def test_a_wide_row_loses_no_precision(native):
    x, weight = 3 + random(1, 2, 16384), random(2, 16384)
    assert_allclose(normed(native, x, weight), expected(x, weight), rtol=1e-6)


@given(tokens=st.integers(1, 4), width=st.integers(1, 70))
def test_rms_norm_may_be_added_to_what_is_there(native, tokens, width):
    x, weight, onto = random(3, tokens, width), random(4, width), random(5, tokens, width)
    added = normed(native, x, weight, onto=onto)
    assert_allclose(added, onto + expected(x, weight), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [7, 64, 576])
def test_rms_norm_may_overwrite_its_input(native, width):
    x, weight = random(6, 3, width), random(7, width)
    apart = normed(native, x, weight)
    native.evh_rms_norm(address(x), address(weight), EPS, width, 0, address(x), 0, 3)
    assert_array_equal(x, apart)


def test_tokens_have_the_same_bits_whoever_computes_them(native):
    x, weight = random(8, 10, 61), random(9, 61)
    shares = [(7, 10), (0, 1), (1, 1), (1, 7)]
    assert_array_equal(normed(native, x, weight, shares=shares), normed(native, x, weight))
    assert_array_equal(normed(native, x[4:5], weight)[0], normed(native, x, weight)[4])


def test_only_the_items_asked_for_are_written(native):
    x, weight = random(10, 4, 20), random(11, 20)
    out = normed(native, x, weight, shares=[(1, 3)])
    assert np.isfinite(out[1:3]).all()
    assert np.isnan(out[[0, 3]]).all()
