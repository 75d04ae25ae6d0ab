"""Whole runs in virtual time: the real dispatcher before the real engine core.

4 slots, 512 KV tokens. Limits are small, so that the bound says something: prompts of at most 64
tokens, outputs of at most 32, and a concurrency of 8, which slots and look-ahead make 5.
"""

import pytest

from fairness.policy import FcfsPolicy, VtcPolicy
from fairness.types import PoolConfig, TenantTerms
from tests.fairness.checker import Watch
from tests.fairness.virtual_time import EngineReplica, Load, Pool

LIMITS = {"concurrency": 8, "max_prompt_tokens": 64, "max_output_tokens": 32}
PROMPTS, OUTPUTS = (64, 16, 40, 33, 8), (32, 8, 20)
CONFIG = PoolConfig(ttl_s=1e9)


class Run:
    """One run; keeps the largest spread seen, and the service of each tenant."""

    def __init__(self, policy, loads, seconds: float) -> None:
        fair = isinstance(policy, VtcPolicy)
        self.watch = Watch(CONFIG, policy, promises_bound=fair)
        self.engine = EngineReplica("r", slots=4, kv_tokens=512)
        self.largest, self.bound, self.moments, self.apart = 0, 0, 0, 0
        pool = Pool(self.watch.apply, [self.engine])
        pool.observers.append(self.observe)
        for load in loads:
            pool.offer(load, seconds)
        pool.time.run(seconds)
        self.service = dict(self.watch.service)

    def observe(self) -> None:
        snapshot = self.watch.snapshot
        if all(t.backlogged for t in snapshot.tenants) and len(snapshot.tenants) == 2:
            self.moments += 1
            self.largest = max(self.largest, snapshot.spread)
            self.bound = max(self.bound, snapshot.spread_bound)
            self.apart += snapshot.spread > snapshot.spread_bound


def tenfold(policy) -> Run:
    terms = TenantTerms(1000, **LIMITS)
    light = Load("light", terms, 0.5, PROMPTS, OUTPUTS)
    heavy = Load("heavy", terms, 0.05, PROMPTS, OUTPUTS)
    return Run(policy, [light, heavy], seconds=60.0)


def test_a_tenfold_load_stays_within_the_bound_and_fcfs_exceeds_twice_it() -> None:
    fair, control = tenfold(VtcPolicy()), tenfold(FcfsPolicy())
    assert fair.moments > 1000
    assert fair.apart == 0
    assert fair.bound == 1_152_000
    assert control.largest > 2 * control.bound
    assert fair.engine.most_running == control.engine.most_running == 4


def test_requests_of_many_sequences_stay_within_the_bound_and_gain_nothing() -> None:
    """One tenant asks for three choices at a time, the other for one: output is what counts."""
    terms = TenantTerms(1000, **LIMITS)
    loads = [
        Load("one", terms, 0.05, PROMPTS, OUTPUTS),
        Load("three", terms, 0.05, PROMPTS, OUTPUTS, sequences=(3, 2)),
    ]
    run = Run(VtcPolicy(), loads, seconds=60.0)
    assert run.moments > 1000
    assert run.apart == 0
    assert run.largest > 0
    assert run.service["three"] / run.service["one"] == pytest.approx(1, rel=0.05)
    control = Run(FcfsPolicy(), loads, seconds=60.0)
    assert control.largest > 2 * control.bound
    assert control.service["three"] > 1.5 * control.service["one"]


def test_weights_one_to_three_give_service_one_to_three() -> None:
    loads = [
        Load(name, TenantTerms(weight, **LIMITS), 0.1, PROMPTS, OUTPUTS)
        for name, weight in [("one", 1000), ("three", 3000)]
    ]
    run = Run(VtcPolicy(), loads, seconds=60.0)
    assert run.apart == 0
    assert run.service["three"] / run.service["one"] == pytest.approx(3, rel=0.05)
