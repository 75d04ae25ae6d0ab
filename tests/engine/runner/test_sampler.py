"""The sampler against a naive twin, its stream, and the shape of what it draws."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.request import SamplingParams
from engine.runner import sampler
from engine.runner.logits import process
from engine.runner.sampler import choose, sample, uniform


def naive_sample(logits, params, point):
    """The contract of the module's docstring, in plain Python over exact-enough floats."""
    logits = [-math.inf if math.isnan(x) else float(x) for x in logits]
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if params.temperature == 0:
        return ranked[0]
    top = logits[ranked[0]]
    weights = [1.0 if x == top else math.exp((x - top) / params.temperature) for x in logits]
    ranked = [i for i in ranked if weights[i] >= params.min_p]
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        total, run, kept = math.fsum(weights[i] for i in ranked), [], []
        for i in ranked:
            kept.append(i)
            run.append(weights[i])
            if math.fsum(run) >= params.top_p * total:
                break
        ranked = kept
    ids = sorted(ranked)
    total, run = math.fsum(weights[i] for i in ids), 0.0
    for i in ids:
        run += weights[i]
        if run > point * total:
            return i
    return max(i for i in ids if weights[i] > 0)


# Quarters tie often, which is where an order matters.
# No share of up to 40 equal tokens is any of these: at an exact boundary rounding would decide.
TOP_P = [1e-9, 0.1003, 0.4997, 0.9001, 0.9993, 1.0]
LOGITS = st.lists(
    st.integers(-40, 40).map(lambda n: n / 4) | st.floats(-50, 50, width=32),
    min_size=1,
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(
    logits=LOGITS,
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.0]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from(TOP_P),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 0.7, 1.0]),
    seed=st.integers(-(2**63), 2**64 - 1),
    index=st.integers(0, 10_000),
)
def test_equals_its_naive_twin(logits, temperature, top_k, top_p, min_p, seed, index):
    params = SamplingParams(1, temperature, top_p, top_k, min_p, seed)
    values = np.array(logits, np.float32)
    assert choose(values, params, index) == naive_sample(values, params, uniform(seed, index))


@pytest.mark.parametrize("top_p", [0.3, 0.95])
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_a_partial_ranking_changes_nothing(top_p, scale, monkeypatch):
    """A flat distribution needs more candidates than are ranked first, a peaked one fewer."""
    logits = (scale * np.random.default_rng(0).standard_normal(5000)).astype(np.float32)
    params = SamplingParams(1, 1.0, top_p, seed=9)
    partial = [choose(logits, params, index) for index in range(40)]
    monkeypatch.setattr(sampler, "_FIRST_CANDIDATES", 5000)
    assert partial == [choose(logits, params, index) for index in range(40)]


def test_greedy_takes_the_lowest_id_on_ties():
    logits = np.array([0, 3, 1, 3, 3], np.float32)
    assert choose(logits, SamplingParams(1, 0.0), 0) == 1
    assert choose(logits, SamplingParams(1, 1.0, top_k=1), 0) == 1


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("logits", "allowed"),
    [
        ([NAN, 1, 2], {1, 2}),
        ([NAN, NAN], {0, 1}),
        ([-INF, 5, -INF], {1}),
        ([INF, 5, INF], {0, 2}),
        ([-INF, -INF, -INF], {0, 1, 2}),
        ([3e38, -3e38, 3e38], {0, 2}),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-9, 1.0, 1e300])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 1.0, 0.0), (2, 1.0, 0.0), (0, 0.5, 0.1), (2, 1e-300, 0.0), (0, 1.0, 1.0)],
)
def test_extreme_values_are_safe(logits, allowed, temperature, top_k, top_p, min_p):
    values = np.array(logits, np.float32)
    params = SamplingParams(1, temperature, top_p, top_k, min_p, seed=1)
    got = {sample(values, params, (), [0] * index).token_id for index in range(20)}
    if temperature == 1e300:  # so hot that finite logits are all alike
        allowed = {i for i, x in enumerate(logits) if x > -INF} | allowed
    assert got <= allowed


def test_a_tiny_temperature_is_greedy():
    logits = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    greedy = choose(logits, SamplingParams(1, 0.0), 0)
    for index in range(20):
        assert choose(logits, SamplingParams(1, 1e-6, seed=3), index) == greedy


def test_the_stream_is_a_function_of_seed_and_index_alone():
    assert uniform(7, 3) == uniform(7, 3)
    points = [uniform(seed, index) for seed in range(30) for index in range(30)]
    assert len(set(points)) == len(points)
    assert uniform(-1, 0) == uniform(2**64 - 1, 0)
    assert all(0 <= point < 1 for point in points)


def test_known_points():
    """A change here silently changes every seeded answer."""
    points = [uniform(0, 0), uniform(0, 1), uniform(1, 0)]
    assert points == [0.011546754286331562, 0.21185954403345741, 0.3035680343067586]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, range(6)),
        ({"temperature": 0.5}, range(6)),
        ({"top_k": 3}, [5, 4, 3]),
        ({"top_p": 0.8}, [5, 4]),
        ({"top_k": 4, "top_p": 0.9}, [5, 4, 3]),
        ({"min_p": 0.13}, [5, 4, 3]),
        ({"min_p": 0.1, "top_p": 0.9}, [5, 4]),  # of what min-p left
        ({"temperature": 2.0, "min_p": 0.3}, [5, 4, 3]),
    ],
)
def test_draws_follow_the_distribution(options, kept):
    """Chi-square with fixed streams: 5 degrees of freedom, 0.1% critical value 20.5."""
    logits = [-1.5, -1.0, -0.5, 0.0, 1.0, 2.0]
    weights = {i: math.exp(logits[i] / options.get("temperature", 1.0)) for i in kept}
    assert_drawn_from(weights, logits, (), **options)


def assert_drawn_from(weights, logits, prompt, **options):
    """4,000 draws, at output index 0 to 99 of 40 seeds, against weights by id."""
    values = np.array(logits, np.float32)
    counts = Counter(
        choose(process(values, params, prompt, [1]), params, index)
        for params in (SamplingParams(1, **options, seed=seed) for seed in range(40))
        for index in range(100)
    )
    assert set(counts) == set(weights)
    total = sum(weights.values())
    expected = {i: 4000 * weight / total for i, weight in weights.items()}
    assert sum((counts[i] - e) ** 2 / e for i, e in expected.items()) < 20.5


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"repetition_penalty": 2.0}, {0: 0.5, 1: 1.0}),
        ({"frequency_penalty": 1.5}, {1: 0.5}),
        ({"presence_penalty": -0.5}, {1: 2.5}),
        ({"logit_bias": ((3, 2.0), (0, -1.0))}, {3: 1.0, 0: 0.0}),
        ({"allowed_token_ids": (3, 1, 0)}, {2: None}),
        ({"bad_words": ((1, 0), (2, 3), (2,))}, {0: None, 2: None}),
        ({"min_tokens": 2, "stop_token_ids": frozenset({1})}, {1: None}),
    ],
)
def test_draws_follow_the_rules(options, changed):
    """The same with prompt 0 and output 1, under each rule; None is a token it forbids."""
    logits = {0: 1.0, 1: 2.0, 2: 0.0, 3: -1.0}
    weights = {i: math.exp(x) for i, x in (logits | changed).items() if x is not None}
    assert_drawn_from(weights, list(logits.values()), (0,), **options)


def test_log_probabilities_are_of_the_raw_logits():
    """Whatever the rules make of them: here the likeliest token is forbidden."""
    logits = np.array([1.0, 3.0, 2.0, NAN], np.float32)
    params = SamplingParams(
        1, temperature=0.0, logprobs=2, bad_words=((1,),), logit_bias=((0, 9.0),)
    )
    got = sample(logits, params, (), [])
    total = math.log(math.exp(1) + math.exp(2) + math.exp(3))
    assert got.token_id == got.logprobs.token_id == 0
    assert got.logprobs.rank == 3
    assert got.logprobs.logprob == pytest.approx(1 - total)
    assert [i for i, _ in got.logprobs.top] == [1, 2]
    assert [p for _, p in got.logprobs.top] == pytest.approx([3 - total, 2 - total])


@pytest.mark.parametrize(("asked", "given"), [(None, None), (0, 0), (4, 4), (9, 5)])
def test_as_many_log_probabilities_as_asked_for(asked, given):
    logits = np.arange(5, dtype=np.float32)
    got = sample(logits, SamplingParams(1, logprobs=asked), (), []).logprobs
    assert (got and len(got.top)) == given


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_outside_the_allow_list_whatever_the_other_rules(temperature):
    logits = np.array([9, -INF, 1, 2], np.float32)
    rules = {"allowed_token_ids": (1, 3), "bad_words": ((1,), (3,))}
    for seed in range(30):
        params = SamplingParams(1, temperature, seed=seed, **rules)
        assert sample(logits, params, (), []).token_id == 3
