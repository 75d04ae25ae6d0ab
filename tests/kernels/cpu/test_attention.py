"""Native paged attention against softmax in double precision, over all that may straddle."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from tests.support.paged import Sizes, attend, make_paged, naive_attention, num_items

BATCHES = {
    "one": [(0, 1)],
    "decodes": [(15, 1), (16, 1), (17, 1), (127, 1), (128, 1), (200, 1)],
    "prefills": [(0, 15), (0, 16), (0, 17)],
    "mixed": [(130, 33), (5, 1), (0, 40), (64, 1)],
}
WINDOWS = [1, 2, 5, 15, 16, 17, 33, 128, 129, 1000]


@st.composite
def batches(draw, longest=150):
    """Rows and sizes of any kind: page sizes and head sizes that nothing divides, too."""
    rows = st.lists(st.tuples(st.integers(0, longest), st.integers(1, 40)), min_size=1, max_size=4)
    sizes = Sizes(
        kv_heads=draw(st.integers(1, 3)),
        shared=draw(st.integers(1, 9)),
        head_dim=draw(
            st.sampled_from([64, 80, 96]) | st.integers(1, 33).map(lambda half: 2 * half)
        ),
        page_size=draw(st.just(16) | st.integers(1, 64)),
        window=draw(st.just(0) | st.integers(1, 200)),
    )
    return make_paged(draw(rows), sizes, seed=draw(st.integers(0, 1000)))


def assert_right(native, paged):
    expected = naive_attention(paged)
    assert np.isfinite(expected).all()
    assert_allclose(attend(native, paged), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [0, *WINDOWS])
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_attention_is_softmax_over_what_a_token_sees(native, rows, window):
    assert_right(native, make_paged(rows, Sizes(window=window)))


@pytest.mark.parametrize("head_dim", [2, 8, 20, 64, 80, 96, 128, 130, 256])
@pytest.mark.parametrize("page_size", [1, 3, 5, 8, 16, 24, 64])
def test_any_page_size_and_head_size_will_do(native, head_dim, page_size):
    sizes = Sizes(1, 2, head_dim, page_size)
    assert_right(native, make_paged([(17, 18), (70, 1)], sizes))
    assert_right(native, make_paged([(17, 18), (70, 1)], replace(sizes, window=19)))


@pytest.mark.parametrize("shared", range(1, 10))
def test_any_number_of_heads_shares_a_key_head(native, shared):
    assert_right(native, make_paged([(150, 1), (3, 18)], Sizes(2, shared)))


@settings(max_examples=60)
@given(paged=batches())
def test_attention_is_right_for_any_batch(native, paged):
    assert_right(native, paged)


@settings(max_examples=25)
@given(paged=batches(), data=st.data())
def test_items_give_the_same_bits_in_any_order_and_any_shares(native, paged, data):
    total = num_items(native, paged)
    cuts = data.draw(st.lists(st.integers(0, total), max_size=6))
    edges = [0, *sorted(cuts), total]
    shares = data.draw(st.permutations(list(pairwise(edges))))
    assert_array_equal(attend(native, paged, shares), attend(native, paged))


@settings(max_examples=40)
@given(paged=batches(), data=st.data())
def test_a_token_has_the_same_bits_in_any_chunk_and_any_batch(native, paged, data):
    together = attend(native, paged)
    row = data.draw(st.integers(0, len(paged.rows) - 1))
    count, token = paged.rows[row][1], paged.layout.row_starts[row]
    cuts = data.draw(st.lists(st.integers(0, count), max_size=3))
    edges = [0, *sorted(set(cuts) - {0, count}), count]
    for first, past in pairwise(edges):
        alone = attend(native, paged.only(row, first, past))
        assert_array_equal(alone, together[token + first : token + past])


@pytest.mark.parametrize("page_size", [16, 5])
@pytest.mark.parametrize("window", [0, 20, 150])
def test_a_prompt_has_the_same_bits_whole_and_token_by_token(native, window, page_size):
    paged = make_paged([(0, 300)], Sizes(1, 2, 16, page_size, window))
    whole = attend(native, paged)
    for token in range(300):
        assert_array_equal(attend(native, paged.only(0, token, token + 1))[0], whole[token])


@pytest.mark.parametrize("window", [0, 1, 7, 20])
def test_a_bad_number_reaches_only_those_who_see_it(native, window):
    """Within one tile: what a token does not see is not multiplied by zero, it is not there."""
    bad = 9
    for name in ("keys", "values"):
        paged = make_paged([(0, 40)], Sizes(1, 3, window=window))
        page, slot = paged.slot(0, bad)
        clean = attend(native, paged)
        if name == "keys":
            paged.keys[page, 0, 5, slot] = np.nan
        else:
            paged.values[page, 0, slot] = np.nan
        seeing = range(bad, min(40, bad + window) if window else 40)
        blind = np.setdiff1d(np.arange(40), seeing)
        got = attend(native, paged)
        assert np.isnan(got[seeing]).all()
        assert_array_equal(got[blind], clean[blind])


def test_a_window_holds_that_many_positions_and_the_tokens_own_is_one(native):
    """Values of one-hot positions under equal scores: the output names what was attended to."""
    count, window = 40, 6
    paged = make_paged([(0, count)], Sizes(1, 1, window=window))
    paged.qkv[:] = 0
    for position in range(count):
        page, slot = paged.slot(0, position)
        paged.values[page, 0, slot] = np.eye(64)[position]
    attended = attend(native, paged)[:, :count]
    distance = np.arange(count)[:, None] - np.arange(count)
    inside = (distance >= 0) & (distance < window)
    assert_allclose(attended, inside / inside.sum(-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("size", [1e4, 1e-30])
def test_attention_survives_extreme_scores(native, size):
    paged = make_paged([(0, 20), (200, 1)], Sizes(2, 2))
    paged.qkv[:] *= np.float32(size)
    paged.keys[:] *= np.float32(size)
    assert_allclose(attend(native, paged), naive_attention(paged), rtol=1e-5, atol=1e-5)


def test_the_highest_score_may_come_first_or_last(native):
    """Every span after a higher one adds next to nothing, every one before it is forgotten."""
    for order in (1, -1):
        paged = make_paged([(599, 1)], Sizes(1, 1))
        paged.qkv[:, 1:64] = 0
        paged.qkv[:, 0] = 8
        for position in range(600):
            page, slot = paged.slot(0, position)
            paged.keys[page, 0, 0, slot] = order * (position - 300) / 4
        assert_right(native, paged)


def test_an_empty_share_writes_nothing(native):
    paged = make_paged([(0, 20)], Sizes())
    assert np.isnan(attend(native, paged, [(1, 1)])).all()
