"""What native kernels do to qkv before attention: norms, rotation, keys and values to pages."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from kernels.cpu.structs import address
from tests.support.paged import Paged, Sizes, make_paged

EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """A batch whose pages are blank, angles of its tokens, perhaps norms of its heads."""

    paged: Paged
    cos: np.ndarray
    sin: np.ndarray
    query_norm: np.ndarray | None = None
    key_norm: np.ndarray | None = None


def make_case(rows, sizes, *, query_norm=False, key_norm=False):
    paged = make_paged(rows, sizes)
    paged.keys[:], paged.values[:] = 0, 0
    random = np.random.default_rng(1)
    angles = 100 * random.standard_normal((len(paged.qkv), sizes.head_dim // 2), np.float32)
    norms = random.standard_normal((2, sizes.head_dim), np.float32)
    return Case(
        paged,
        np.cos(angles),
        np.sin(angles),
        norms[0] if query_norm else None,
        norms[1] if key_norm else None,
    )


def run(native, case, shares=None):
    """What the kernel makes of qkv."""
    paged, qkv = case.paged, case.paged.qkv.copy()
    for first, past in shares or [(0, len(qkv))]:
        native.evh_heads(
            address(qkv),
            paged.sizes.heads,
            address(case.query_norm),
            address(case.key_norm),
            EPS,
            address(case.cos),
            address(case.sin),
            paged.pages,
            paged.batch,
            first,
            past,
        )
    return qkv


def expected(case):
    """Every head of qkv in double precision, [N, H + 2G, D]."""
    sizes = case.paged.sizes
    heads = case.paged.qkv.astype(np.float64).reshape(len(case.cos), -1, sizes.head_dim)
    queries, keys, values = np.split(heads, [sizes.heads, sizes.heads + sizes.kv_heads], axis=1)
    queries = rotated(normed(queries, case.query_norm), case)
    return np.concatenate([queries, rotated(normed(keys, case.key_norm), case), values], axis=1)


def normed(heads, weight):
    if weight is None:
        return heads
    return heads / np.sqrt(np.square(heads).mean(-1, keepdims=True) + EPS) * weight


def rotated(heads, case):
    low, high = np.split(heads, 2, axis=-1)
    cos, sin = case.cos[:, None], case.sin[:, None]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


rows_of_tokens = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4)
any_sizes = st.builds(
    Sizes,
    kv_heads=st.integers(1, 3),
    shared=st.integers(1, 4),
    head_dim=st.just(64) | st.integers(1, 40).map(lambda half: 2 * half),
    page_size=st.integers(1, 17),
    window=st.sampled_from([0, 5]),
)


@given(rows=rows_of_tokens, sizes=any_sizes, query_norm=st.booleans(), key_norm=st.booleans())
def test_heads_are_normed_and_rotated_and_values_left_alone(
    native, rows, sizes, query_norm, key_norm
):
    case = make_case(rows, sizes, query_norm=query_norm, key_norm=key_norm)
    qkv = run(native, case).reshape(len(case.cos), -1, sizes.head_dim)
    assert_allclose(qkv, expected(case), rtol=1e-5, atol=2e-6)
    before = case.paged.qkv.reshape(qkv.shape)
    assert_array_equal(qkv[:, -sizes.kv_heads :], before[:, -sizes.kv_heads :])


@given(rows=rows_of_tokens, sizes=any_sizes)
def test_every_slot_of_a_token_has_its_keys_and_values_and_no_other_is_touched(native, rows, sizes):
    case = make_case(rows, sizes)
    qkv = run(native, case).reshape(len(case.cos), -1, sizes.head_dim)
    paged = case.paged
    keys, values = np.zeros_like(paged.keys), np.zeros_like(paged.values)
    for token, row in enumerate(paged.layout.rows):
        page, slot = paged.slot(row, paged.layout.positions[token])
        keys[page, :, :, slot] = qkv[token, sizes.heads : -sizes.kv_heads]
        values[page, :, slot] = qkv[token, -sizes.kv_heads :]
    assert keys.any()
    assert_array_equal(paged.keys, keys)
    assert_array_equal(paged.values, values)
    assert not paged.keys[paged.no_page].any()


@pytest.mark.parametrize("head_dim", [6, 64, 96])
def test_tokens_have_the_same_bits_whoever_computes_them(native, head_dim):
    sizes = Sizes(head_dim=head_dim)
    whole, parts = (
        make_case([(3, 9), (30, 1)], sizes, query_norm=True, key_norm=True) for _ in range(2)
    )
    assert_array_equal(run(native, parts, [(6, 10), (0, 1), (1, 6)]), run(native, whole))
    assert_array_equal(parts.paged.keys, whole.paged.keys)
    assert_array_equal(parts.paged.values, whole.paged.values)


def test_a_head_is_rotated_by_pairs_half_a_head_apart(native):
    """A quarter turn takes element i to i + D / 2."""
    case = make_case([(0, 1)], Sizes(1, 1, 8))
    case.cos[:], case.sin[:] = 0, 1
    case.paged.qkv[0] = np.arange(24)
    queries = run(native, case)[0, :8]
    assert_array_equal(queries, [-4, -5, -6, -7, 0, 1, 2, 3])
