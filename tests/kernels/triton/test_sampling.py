"""`kernels.triton.sampling` against the sampler of the CPU, and against plain torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.request import SamplingParams
from engine.runner.logits import without_nan
from engine.runner.sampler import candidates, choose, uniform
from kernels.draws import Draws
from kernels.reference import ReferenceKernels
from kernels.triton import sampling
from kernels.triton.sampling import sample
from tests.support.paged_tensors import DEVICE

INF, NAN = float("inf"), float("nan")
GREEDY = (0.0, 0, 1.0, 0.0, 0.5)
RULES = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 0.9, 0.0),
    (1.5, 12, 1.0, 0.0),
    (1.0, 40, 0.8, 0.0),
    (0.8, 0, 1.0, 0.05),
    (1.2, 7, 0.6, 0.02),
    (2.0, 4500, 0.97, 0.0),
]


def params(rule, seed=0):
    temperature, top_k, top_p, min_p = rule
    return SamplingParams(
        max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )


def drawn(logits, *rules):
    return sample(torch.as_tensor(logits).to(DEVICE), Draws.of(rules)).tolist()


def plainly_drawn(logits, *rules):
    return ReferenceKernels().sample(torch.as_tensor(logits), Draws.of(rules)).tolist()


@pytest.mark.parametrize("size", [1, 3, 100, 5000])
def test_tokens_are_those_of_the_cpu(size):
    rng = np.random.default_rng(size)
    logits = (rng.normal(size=(len(RULES), size)) * 3).astype(np.float32)
    chosen = [choose(row, params(rule, 9), 4) for row, rule in zip(logits, RULES, strict=True)]
    rules = [(*rule, uniform(9, 4)) for rule in RULES]
    assert drawn(logits, *rules) == chosen
    assert plainly_drawn(logits, *rules) == chosen


few = st.sampled_from([-INF, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 1.0 + 2**-23, 3.0, INF, NAN])
rule = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    st.sampled_from([0, 1, 2, 3, 50]),
    st.sampled_from([0.01, 0.3, 0.77, 0.999, 1.0]),
    st.sampled_from([0.0, 0.01, 0.4, 0.97]),
    st.floats(0, 1, exclude_max=True),
)


@settings(max_examples=20)
@given(st.lists(few, min_size=1, max_size=9), rule)
def test_ties_infinities_and_nan_are_as_on_the_cpu(values, rule):
    logits = np.array(values, np.float32)
    (token,) = drawn(logits[None], rule)
    if np.isnan(logits).all():
        assert token == -1
        return
    clean = without_nan(logits)
    chosen = params(rule[:4])
    if rule[0] <= 0 or rule[1] == 1:
        assert token == int(clean.argmax())
        return
    kept, weights = candidates(clean, chosen)
    kept = np.arange(len(clean)) if kept is None else kept
    sums = np.cumsum(weights[kept]) / weights[kept].sum()
    index = kept.tolist().index(token)
    # In the set, and the point is in the token's share, but for rounding.
    assert weights[token] > 0
    assert sums[index] >= rule[4] - 1e-6
    assert index == 0 or sums[index - 1] <= rule[4] + 1e-6


@settings(max_examples=300)
@given(st.lists(few, min_size=1, max_size=9), rule)
def test_the_reference_draws_as_the_cpu_does(values, rule):
    logits = np.array(values, np.float32)
    (token,) = plainly_drawn(logits[None], rule)
    if np.isnan(logits).all():
        assert token == -1
        return
    clean, chosen = without_nan(logits), params(rule[:4])
    if rule[0] <= 0 or rule[1] == 1:
        assert token == int(clean.argmax())
        return
    kept, weights = candidates(clean, chosen)
    kept = np.arange(len(clean)) if kept is None else kept
    sums = np.cumsum(weights[kept]) / weights[kept].sum()
    assert token == kept[np.searchsorted(sums, rule[4], side="right")]


def test_the_largest_logit_is_taken_and_the_lowest_id_on_ties():
    logits = torch.tensor([[1.0, 5.0, 5.0, NAN], [-INF, -INF, NAN, -INF], [NAN, NAN, NAN, 2.0]])
    greedy = [GREEDY, GREEDY, (1.0, 1, 0.5, 0.3, 0.99)]
    assert drawn(logits, *greedy) == [1, 0, 3]


def test_a_row_without_a_number_has_no_token():
    logits = torch.tensor([[NAN, NAN], [1.0, 0.0], [NAN, NAN]])
    assert drawn(logits, GREEDY, GREEDY, (1.0, 2, 0.9, 0.1, 0.5)) == [-1, 0, -1]


def test_of_equal_tokens_the_lower_ids_are_kept():
    logits = torch.zeros(1, 100)
    for point, token in ((0.0, 0), (0.49, 4), (0.99, 9)):
        assert drawn(logits, (1.0, 10, 1.0, 0.0, point)) == [token]
        assert drawn(logits, (1.0, 0, 0.1, 0.0, point)) == [token]


def test_a_nucleus_is_a_share_of_all_tokens_also_of_those_beyond_it():
    # 0.3 of 3 + 1 / e, which is more than one of the likeliest.
    logits = torch.tensor([[0.0, 0.5, 0.5, 0.5]])
    rules = [(0.5, 0, 0.3, 0.0, 0.49), (0.5, 0, 0.3, 0.0, 0.51)]
    assert drawn(logits.expand(2, 4).contiguous(), *rules) == [1, 2]


def test_a_point_just_below_one_is_the_last_token():
    almost = 1 - 2.0**-53
    logits = torch.tensor([[0.0, 1.0, 0.5, -INF], [3.0, 3.0, 3.0, 3.0]])
    assert drawn(logits, (1.0, 0, 1.0, 0.0, almost), (1.0, 3, 1.0, 0.0, almost)) == [2, 2]
    assert plainly_drawn(logits, (1.0, 0, 1.0, 0.0, almost), (1.0, 3, 1.0, 0.0, almost)) == [2, 2]


def test_extreme_temperatures_are_the_largest_logit_or_an_even_choice():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    assert drawn(logits, (1e-320, 0, 0.5, 0.1, 0.99)) == [1]
    assert drawn(logits, (1e30, 0, 1.0, 0.0, 0.80)) == [3]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0, -3.0, 0.0]])
    points = (np.arange(12) + 0.5) / 12
    counts = np.zeros(6)
    for token in drawn(
        logits.expand(12, 6).contiguous(), *[(1.0, 0, 0.95, 0.0, p) for p in points]
    ):
        counts[token] += 1
    expected = logits[0].double().softmax(0).numpy()
    expected[4] = expected[1] = 0  # beyond the nucleus: 0.95 is reached without them
    np.testing.assert_allclose(counts / 12, expected / expected.sum(), atol=1 / 12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_logits_may_be_halves(dtype):
    logits = torch.randn(2, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
    rules = [(1.0, 20, 0.9, 0.0, 0.3), (0.5, 0, 0.9, 0.0, 0.6)]
    assert drawn(logits, *rules) == plainly_drawn(logits.float(), *rules)


def test_more_rows_than_there_is_room_for_are_drawn_in_turn(monkeypatch):
    monkeypatch.setattr(sampling, "ROWS_AT_ONCE", 2)
    logits = torch.eye(5)
    assert drawn(logits, *[GREEDY] * 5) == [0, 1, 2, 3, 4]


def test_no_rows_draw_nothing():
    none = np.empty(0)
    draws = Draws(none, np.empty(0, np.int32), none, none, none)
    assert sample(torch.empty(0, 8), draws).tolist() == []
