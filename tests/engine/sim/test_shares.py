"""Measures of a run that is written down by hand."""

from array import array

import numpy as np
import pytest

from engine.sim.job import Job, Span
from engine.sim.queues import FairnessSample
from engine.sim.shares import Delivered, difference, fairness_index, first_tokens, shares
from engine.sim.trace import JobTrace
from fairness.types import Prices


def trace(tenant, tokens, *, prompt=10, cached=0, arrived=0.0):
    job = Job(f"{tenant}-{arrived}", (Span(1, prompt),), Span(2, max(1, len(tokens))), 0, tenant)
    return JobTrace(job, arrived, num_cached_tokens=cached, token_times=array("d", tokens))


def sample(now, *backlogged):
    return FairnessSample(now, 0, 0, frozenset(backlogged), {})


def test_a_prompt_is_delivered_with_its_first_token_and_hits_are_cheaper():
    one = Delivered.of([trace("a", [2.0, 3.0], cached=5), trace("a", [])], Prices())
    assert one.at(np.array([1.0, 2.0, 3.0])).tolist() == [0.0, 7.5, 9.5]
    assert one.between(2.0, 3.0) == 2.0


def test_the_difference_counts_from_when_both_wait():
    delivered = {
        "a": Delivered.of([trace("a", [1.0, 2.0, 3.0, 4.0, 5.0])], Prices()),
        "b": Delivered.of([trace("b", [4.0])], Prices()),
    }
    samples = [sample(1.0, "a"), *(sample(float(now), "a", "b") for now in (2, 3, 4)), sample(5.0)]
    found = difference(samples, delivered, {"a": 1.0, "b": 2.0})
    assert found.when.tolist() == [2.0, 3.0, 4.0]
    assert found.units.tolist() == [0.0, 2.0, 2.0]  # b's 12 units at 4.0 are 6 by weight
    assert (found.largest, found.mean) == (2.0, pytest.approx(4 / 3))
    assert found.variance == pytest.approx(8 / 9)


def test_a_pair_that_waits_again_starts_anew():
    delivered = {
        "a": Delivered.of([trace("a", [1.0, 2.0, 3.0, 4.0])], Prices()),
        "b": Delivered.of([], Prices()),
    }
    samples = [
        sample(1.0, "a", "b"),
        sample(2.0, "a", "b"),
        sample(3.0, "a"),
        sample(4.0, "a", "b"),
    ]
    found = difference(samples, delivered, {"a": 1.0, "b": 1.0})
    assert found.units.tolist() == [0.0, 2.0, 0.0]


def test_nobody_waiting_together_is_no_difference():
    found = difference([sample(1.0, "a")], {"a": Delivered.of([], Prices())}, {"a": 1.0})
    assert (found.largest, found.mean, found.variance) == (0.0, 0.0, 0.0)


def test_shares_and_jain_are_of_the_interval_and_by_weight():
    delivered = {
        "a": Delivered.of([trace("a", [1.0, 6.0])], Prices()),
        "b": Delivered.of([trace("b", [2.0], prompt=4)], Prices()),
    }
    assert shares(delivered, 0.0, 5.0) == {"a": 12 / 18, "b": 6 / 18}
    assert fairness_index(delivered, {"a": 2.0, "b": 1.0}, 0.0, 5.0) == 1.0
    assert fairness_index(delivered, {"a": 1.0, "b": 1.0}, 0.0, 5.0) < 1.0


def test_first_tokens_are_of_those_that_got_one():
    waits = first_tokens([trace("a", [3.0]), trace("a", [9.0], arrived=4.0), trace("a", [])])
    assert (waits.mean, waits.max) == (4.0, 5.0)
