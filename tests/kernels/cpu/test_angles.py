"""Native angles against torch: the product in single precision, as transformers takes it."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernels.cpu.structs import address


def angles(native, positions, frequencies, scale=1.0, shares=None):
    cos, sin = np.full((2, len(positions), len(frequencies)), np.nan, np.float32)
    for first, past in shares or [(0, len(positions))]:
        native.evh_angles(
            address(positions, np.int32),
            address(frequencies, np.float32),
            scale,
            len(frequencies),
            address(cos),
            address(sin),
            first,
            past,
        )
    return cos, sin


def frequencies_of(half, base):
    return (base ** -(np.arange(half) / half)).astype(np.float32)


@given(
    half=st.integers(1, 70),
    base=st.sampled_from([1e4, 1e5, 1e6]),
    positions=st.lists(st.integers(0, 200_000), min_size=1, max_size=5),
    scale=st.sampled_from([1.0, 1.3465736]),
)
def test_angles_are_those_of_the_product_in_single_precision(native, half, base, positions, scale):
    frequencies, positions = frequencies_of(half, base), np.array(positions, np.int32)
    cos, sin = angles(native, positions, frequencies, scale)
    product = torch.from_numpy(positions).float()[:, None] * torch.from_numpy(frequencies)
    factor = float(np.float32(scale))
    for got, function in ((cos, torch.cos), (sin, torch.sin)):
        exact = (function(product.double()) * factor).numpy()
        theirs = (function(product) * factor).numpy()
        assert_allclose(got, exact, rtol=2e-7, atol=1e-9)
        assert_allclose(got, theirs, rtol=3e-7, atol=1e-7)


def test_items_may_be_shared_out(native):
    positions, frequencies = np.arange(100, 110, dtype=np.int32), frequencies_of(32, 1e4)
    shares = [(5, 10), (0, 2), (2, 5)]
    for whole, parts in zip(
        angles(native, positions, frequencies),
        angles(native, positions, frequencies, shares=shares),
        strict=True,
    ):
        assert_array_equal(parts, whole)
