"""Log-probabilities against a naive twin, their extremes, and the order of the most likely."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.logprobs import largest, score


def naive_score(logits, token, count):
    """One row: log of exp(logit) over their sum, with exact sums."""
    logits = [-math.inf if math.isnan(x) else x for x in logits]
    top = max(logits)
    total = math.fsum(1.0 if x == top else math.exp(x - top) for x in logits)
    values = [(0.0 if x == top else x - top) - math.log(total) for x in logits]
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    rank = sum(x >= logits[token] for x in logits)
    return values[token], rank, [(i, values[i]) for i in ranked[:count]]


ROWS = st.integers(1, 30).flatmap(
    lambda size: st.lists(
        st.lists(
            st.integers(-12, 12).map(lambda n: n / 4)
            | st.floats(-50, 50, width=32)
            | st.sampled_from([-math.inf, math.nan]),
            min_size=size,
            max_size=size,
        ),
        min_size=1,
        max_size=4,
    )
)


@given(rows=ROWS, count=st.integers(0, 32), data=st.data())
def test_equals_its_naive_twin(rows, count, data):
    tokens = [data.draw(st.integers(0, len(rows[0]) - 1)) for _ in rows]
    got = score(np.array(rows, np.float32), tokens, count)
    for row, token, value in zip(rows, tokens, got, strict=True):
        logprob, rank, top = naive_score(row, token, count)
        assert value.token_id == token
        assert value.rank == rank
        assert value.logprob == pytest.approx(logprob, abs=1e-5)
        assert [i for i, _ in value.top] == [i for i, _ in top]
        assert [p for _, p in value.top] == pytest.approx([p for _, p in top], abs=1e-5)


def test_a_whole_vocabulary_equals_torchs_log_softmax():
    rng = np.random.default_rng(0)
    logits = (4 * rng.standard_normal((5, 49_152))).astype(np.float32)
    tokens = rng.integers(0, 49_152, 5).tolist()
    expected = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for row, token, value in zip(expected, tokens, score(logits, tokens, 20), strict=True):
        assert value.logprob == pytest.approx(row[token], abs=1e-5)
        assert value.rank == int((row >= row[token]).sum())
        ranked = np.argsort(-row, kind="stable")[:20]
        assert [i for i, _ in value.top] == ranked.tolist()
        assert [p for _, p in value.top] == pytest.approx(row[ranked].tolist(), abs=1e-5)


INF, NAN = math.inf, math.nan
HALF, THIRD = -math.log(2), -math.log(3)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([INF, 0, INF], [HALF, -INF, HALF]),
        ([-INF, -INF, -INF], [THIRD, THIRD, THIRD]),
        ([NAN, NAN, NAN], [THIRD, THIRD, THIRD]),
        ([NAN, 7, -INF], [-INF, 0, -INF]),
        ([3e38, -3e38, 3e38], [HALF, -INF, HALF]),
    ],
)
def test_extreme_values_are_safe(logits, expected):
    others = [0.0, 0.0, 0.0]  # an ordinary row beside it stays ordinary
    rows = np.array([logits, others] * 3, np.float32)
    got = score(rows, [0, 0, 1, 1, 2, 2], 1)
    assert [value.logprob for value in got[::2]] == pytest.approx(expected)
    assert [value.logprob for value in got[1::2]] == pytest.approx([THIRD] * 3)


def test_ranks_count_the_equally_likely():
    (value,) = score(np.array([[1, 2, 2, 0]], np.float32), [1], 3)
    assert value.rank == 2
    assert [token for token, _ in value.top] == [1, 2, 0]


@given(
    values=st.lists(st.integers(-4, 4), min_size=1, max_size=40),
    count=st.integers(0, 45),
)
def test_the_largest_come_first_and_lower_ids_before_equals(values, count):
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    assert largest(np.array(values, np.float32), count).tolist() == expected
