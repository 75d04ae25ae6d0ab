"""Native gated activations against double precision and against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch.nn import functional

from kernels.cpu.structs import ACTIVATIONS, address

TORCH = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
each_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def gated(native, gate_up, activation, shares=None):
    tokens, width = len(gate_up), gate_up.shape[1] // 2
    out = np.full((tokens, width), np.nan, np.float32)
    for first, past in shares or [(0, tokens)]:
        native.evh_gate(
            address(gate_up, np.float32), width, ACTIVATIONS[activation], address(out), first, past
        )
    return out


def activated(native, x, activation):
    """The activation alone."""
    gate_up = np.concatenate([x, np.ones_like(x)])[None]
    return gated(native, gate_up, activation)[0]


def in_double(x, activation):
    return TORCH[activation](torch.from_numpy(x).double()).numpy()


def random(seed, *shape):
    return 5 * np.random.default_rng(seed).standard_normal(shape, np.float32)


@given(tokens=st.integers(1, 5), width=st.integers(1, 70))
@each_activation
def test_a_gate_is_its_activation_times_up(native, activation, tokens, width):
    gate_up = random(width, tokens, 2 * width)
    expected = in_double(gate_up[:, :width], activation) * gate_up[:, width:]
    assert_allclose(gated(native, gate_up, activation), expected, rtol=2e-6, atol=1e-7)


@each_activation
def test_activations_agree_with_torch(native, activation):
    x = np.linspace(-20, 20, 100_003, dtype=np.float32)
    expected = TORCH[activation](torch.from_numpy(x)).numpy()
    # Where tanh is near -1, torch's 1 + tanh has an absolute error of its own.
    assert_allclose(activated(native, x, activation), expected, rtol=1e-6, atol=1e-6)


def test_silu_is_exact_to_a_few_units_in_the_last_place_everywhere(native):
    """Down to where e^-x leaves single precision; this is the test of the exponential, too."""
    x = np.linspace(-87, 87, 200_003, dtype=np.float32)
    assert_allclose(activated(native, x, "silu"), in_double(x, "silu"), rtol=3e-7)


def test_gelu_is_exact_in_its_tail(native):
    """A relative error of the exponent's argument is an absolute one of the exponent."""
    x = np.linspace(-6, 6, 100_003, dtype=np.float32)
    expected = in_double(x.astype(np.float64), "gelu_tanh")
    z = np.sqrt(8 / np.pi) * (np.abs(x) + 0.044715 * np.abs(x) ** 3)
    tolerance = np.abs(expected) * (3e-7 + 3e-7 * z)
    # Double precision's own 1 + tanh is worth 1e-16.
    assert (np.abs(activated(native, x, "gelu_tanh") - expected) <= tolerance + 1e-15).all()


@each_activation
def test_far_arguments_saturate(native, activation):
    x = np.array([-3e38, -1e20, -1e4, -100, 100, 1e4, 1e20, 3e38], np.float32)
    got = activated(native, x, activation)
    assert_allclose(got[:4], 0, atol=4)
    assert_array_equal(got[4:], x[4:])


@each_activation
def test_what_is_no_number_stays_none(native, activation):
    x = np.array([1, np.nan, 2, *range(9)], np.float32)
    got = activated(native, x, activation)
    assert_array_equal(np.isnan(got), np.isnan(x))


@each_activation
def test_items_may_be_shared_out(native, activation):
    gate_up = random(3, 6, 34)
    whole = gated(native, gate_up, activation)
    assert_array_equal(gated(native, gate_up, activation, [(4, 6), (0, 1), (1, 4)]), whole)
    assert_array_equal(gated(native, gate_up[2:3], activation)[0], whole[2])
