"""The rules of waiting one at a time: deadlines, refusals in time, locality, pins, what shows."""

import pytest

from fairness import events
from fairness.policy import VtcPolicy
from fairness.types import (
    GrantReason,
    MissReason,
    PassReason,
    PoolConfig,
    RefusalReason,
    ReplicaCapacity,
    TenantTerms,
)
from tests.fairness.checker import Watch
from tests.fairness.playing import ROOMY, UNIT, flying, queue, until_pinned, up

TERMS = TenantTerms(1000, 8, 10, 20)


def told(effects, kind) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def steady(watch: Watch, seconds: int, tokens: int = 10) -> None:
    """Tenant s waits all the time and emits so many tokens a second."""
    terms = TenantTerms(1000, 1_000, 1, 10_000)
    up(watch, 1)
    [running, *_] = queue(watch, "s", terms, 3, prompt=1)
    for second in range(seconds + 1):
        watch.emitted(running, tokens * (second + 1), after=1.0)


def test_without_a_known_rate_a_deadline_is_the_latest_allowed() -> None:
    watch = Watch()
    steady(watch, 7)
    [headed] = told(watch.enqueued("q", "a", TERMS, 10, 20), events.Headed)
    assert headed.rate_milli == 0
    assert headed.deadline == watch.now + 90.0


def test_a_deadline_is_the_work_before_it_over_the_measured_rate() -> None:
    watch = Watch(PoolConfig(t_max_s=1e9))
    steady(watch, 9)
    [headed] = told(watch.enqueued("q", "a", TERMS, 10, 20), events.Headed)
    slack, jump, refund = 50, 10 + 2 * 2 * 20, 2 * 10
    other = (1 + 2 * 10_000) + (1 + 2 * 2 * 10_000) + 2 * 1
    assert headed.rate_milli == 20 * UNIT
    assert headed.work_milli == UNIT * (
        2 * 2 * 20 + refund + (slack + jump + refund + refund) + other
    )
    assert headed.deadline == watch.now + headed.work_milli / headed.rate_milli


@pytest.mark.parametrize(("t_min_s", "t_max_s", "left"), [(1.0, 5.0, 5.0), (1e8, 1e9, 1e8)])
def test_a_deadline_keeps_within_its_limits(t_min_s, t_max_s, left) -> None:
    watch = Watch(PoolConfig(t_min_s=t_min_s, t_max_s=t_max_s, ttl_s=1e9))
    steady(watch, 9)
    [headed] = told(watch.enqueued("q", "a", TERMS, 10, 20), events.Headed)
    assert headed.rate_milli
    assert headed.deadline == watch.now + left


def test_seconds_in_which_nobody_waits_are_not_measured() -> None:
    watch = Watch()
    steady(watch, 9, tokens=100)
    [running, *_] = flying(watch, "s")
    [waiting] = [name for name, seen in watch.live.items() if seen.waits]
    watch.cancelled(waiting)
    for second in range(20):
        watch.emitted(running, 1_000 + second, after=1.0)
    watch.enqueued("q", "a", TERMS, 10, 20)
    assert watch.snapshot.rate_milli == 200 * UNIT


def test_a_deadline_once_given_stands_also_when_another_request_comes_before() -> None:
    watch = Watch()
    up(watch, 1)
    first, _, third = queue(watch, "a", TERMS, 3)
    deadline = watch.live[third].deadline
    assert deadline == 90.0
    watch.ticked(after=10.0)
    watch.requeued(first)
    watch.replica_lost("r")
    assert watch.live[third].deadline == deadline
    assert watch.tenant("a").head_deadline == 90.0


def test_who_would_wait_longer_than_the_ttl_is_refused_at_once() -> None:
    """Counted are only the tenant's own queue and its fair share of the usual rate."""
    watch = Watch(PoolConfig(ttl_s=30.0, t_max_s=20.0))
    steady(watch, 9)
    terms = TenantTerms(1000, 8, 200, 20)
    for i in range(2):
        effects = watch.enqueued(f"q{i}", "a", terms, 200, 20)
        assert not told(effects, events.Refused)
    [refused] = told(watch.enqueued("q2", "a", terms, 200, 20), events.Refused)
    assert refused.reason is RefusalReason.PREDICTED_WAIT
    assert refused.retry_after_s == pytest.approx(2 * 200 * 2 / 20 - 30.0)
    assert not told(watch.enqueued("other", "b", terms, 200, 20), events.Refused)


def test_a_mean_of_the_tenants_own_output_adds_to_the_predicted_wait() -> None:
    watch = Watch(PoolConfig(ttl_s=30.0, t_max_s=20.0))
    terms = TenantTerms(1000, 8, 100, 200)
    up(watch, 1)
    queue(watch, "a", terms, 1, prompt=1)
    watch.finished(flying(watch, "a")[0], 100)
    steady(watch, 9)
    for i in range(2):
        watch.enqueued(f"q{i}", "a", terms, 100, 200)
    [refused] = told(watch.enqueued("q2", "a", terms, 100, 200), events.Refused)
    assert refused.retry_after_s == pytest.approx((2 * 100 + 2 * 200) * 2 / 20 - 30.0)


class Capped(VtcPolicy):
    """Refuses tenant a."""

    def refuses(self, now, tenant) -> float | None:
        return 7.0 if tenant == "a" else None


def test_a_policy_may_refuse_and_says_when_to_come_again() -> None:
    watch = Watch(policy=Capped())
    up(watch, 1)
    [refused] = watch.enqueued("q", "a", TERMS, 10, 20)
    assert (refused.reason, refused.retry_after_s) == (RefusalReason.RATE, 7.0)
    [refused] = watch.enqueued("long", "a", TERMS, 11, 20)
    assert (refused.reason, refused.retry_after_s) == (RefusalReason.PROMPT_LIMIT, None)


def warm(watch: Watch, tenant: str = "a") -> None:
    """A replica of two places, full, and a request whose beginnings were sent."""
    up(watch, 1)
    watch.enqueued("full", "z", TERMS, 10, 20)
    watch.enqueued("warm", tenant, TERMS, 10, 20, prefix=(1, 2, 3))


def test_the_longest_known_prefix_of_the_tenants_queue_goes_first() -> None:
    watch = Watch()
    warm(watch)
    for name, prefix in [("cold", (9,)), ("one", (1, 7)), ("two", (1, 2)), ("also", (1, 2, 8))]:
        watch.enqueued(name, "a", TERMS, 10, 20, prefix=prefix)
    passed, granted, *_ = watch.finished("full", 1)
    assert (passed.request, passed.by, passed.reason) == ("cold", "two", PassReason.LOCALITY)
    assert (granted.request, granted.reason) == ("two", GrantReason.TURN)
    assert watch.snapshot.overtakes_max == 1


def test_only_the_first_sixteen_of_a_queue_are_compared() -> None:
    watch = Watch()
    terms = TenantTerms(1000, 99, 10, 20)
    warm(watch)
    for i in range(16):
        watch.enqueued(f"cold{i}", "a", terms, 10, 20, prefix=(9,))
    watch.enqueued("hot", "a", terms, 10, 20, prefix=(1, 2, 3))
    assert watch.finished("full", 1)[0].request == "cold0"
    passed, granted, *_ = watch.finished("warm", 1)
    assert (passed.request, granted.request) == ("cold1", "hot")


def test_what_was_granted_before_is_not_passed_for_locality() -> None:
    watch = Watch()
    warm(watch, "b")
    watch.enqueued("hot", "z", TERMS, 10, 20, prefix=(1, 2, 3))
    effects = watch.requeued("full")
    assert [grant.request for grant in told(effects, events.Granted)] == ["full"]
    assert not told(effects, events.Passed)


def test_a_restart_forgets_what_was_cached() -> None:
    watch = Watch()
    warm(watch)
    watch.restarted(2)
    watch.replica_up("r", ReplicaCapacity(1, ROOMY))
    watch.enqueued("cold", "a", TERMS, 10, 20, prefix=(9,))
    watch.enqueued("full", "a", TERMS, 10, 20)
    for name, prefix in [("next", (8,)), ("was warm", (1, 2, 3))]:
        watch.enqueued(name, "a", TERMS, 10, 20, prefix=prefix)
    assert told(watch.finished("full", 1), events.Granted)[0].request == "next"


def pinned() -> Watch:
    """A pool in which g's large request is pinned, with f's small ones still on its replica."""
    watch = Watch()
    up(watch, 4, kv_tokens=448)
    queue(watch, "f", TenantTerms(1000, 8, 16, 400), 2, prompt=16, output=8)
    watch.enqueued("big", "g", TenantTerms(1000, 4, 400, 8), 400, 8)
    queue(watch, "f", TenantTerms(1000, 8, 16, 400), 30, prompt=16, output=8)
    until_pinned(watch)
    return watch


def test_what_engines_could_say_of_a_pinned_request_is_ignored() -> None:
    watch = pinned()
    before = watch.snapshot
    for event in ("emitted", "finished"):
        assert getattr(watch, event)("big", 3) == ()
    assert watch.corrected("big", 400, 300) == ()
    assert watch.not_started("big") == watch.requeued("big") == ()
    assert watch.snapshot == before
    assert watch.tenant("g").in_flight == 1


def test_a_pinned_request_may_be_cancelled_and_gets_its_charge_back() -> None:
    watch = pinned()
    effects = watch.cancelled("big")
    assert told(effects, events.Granted)
    assert [f.service_milli for f in told(effects, events.Forgotten) if f.tenant == "g"] in (
        [0],
        [],
    )
    assert watch.snapshot.pinned is None
    assert watch.service.get("g", 0) == 0


def test_a_pinned_request_is_refused_when_its_tenant_may_never_run_it() -> None:
    watch = Watch()
    up(watch, 4, kv_tokens=448)
    queue(watch, "f", TenantTerms(1000, 8, 16, 400), 2, prompt=16, output=8)
    watch.enqueued("big", "g", TenantTerms(1000, 4, 200, 8), 180, 8, 2)
    queue(watch, "f", TenantTerms(1000, 8, 16, 400), 30, prompt=16, output=8)
    until_pinned(watch)
    effects = watch.tenant_changed("g", TenantTerms(1000, 1, 200, 8))
    assert [refused.reason for refused in told(effects, events.Refused)] == [
        RefusalReason.CONCURRENCY
    ]
    assert watch.snapshot.pinned is None


def test_a_replica_that_shrinks_below_a_pinned_request_lets_go_of_it() -> None:
    watch = pinned()
    watch.replica_up("s", ReplicaCapacity(1, 448))
    effects = watch.replica_up("r", ReplicaCapacity(4, 160))
    assert told(effects, events.Unpinned)
    assert watch.live["big"].granted


def test_a_request_sent_back_that_turned_out_too_long_is_refused() -> None:
    watch = Watch()
    up(watch, 2, kv_tokens=640)
    watch.enqueued("q", "a", TenantTerms(1000, 8, 600, 20), 600, 20)
    watch.corrected("q", 700, 0)
    effects = watch.requeued("q")
    assert told(effects, events.Refused)[0].reason is RefusalReason.NO_REPLICA_FITS
    assert watch.live == {}


def test_degraded_intervals_change_nothing() -> None:
    watch = Watch()
    warm(watch)
    before = watch.snapshot
    assert watch.degraded_on("disk") == watch.degraded_off("disk") == ()
    assert watch.snapshot == before


def test_the_snapshot_tells_misses_slack_and_who_is_blocked() -> None:
    watch = Watch(PoolConfig(ttl_s=200.0))
    up(watch, 1)
    queue(watch, "a", TenantTerms(500, 2, 10, 20), 3, prompt=10)
    queue(watch, "b", TERMS, 1, prompt=10)
    assert watch.tenant("a").blocked
    assert watch.tenant("a").slack == 2 * 50 * UNIT
    assert watch.tenant("a").largest_milli == 50 * UNIT
    assert watch.tenant("a").head_deadline is None
    assert watch.tenant("b").head_deadline == 90.0
    watch.ticked(after=90.0)
    assert watch.snapshot.missed[MissReason.NO_FIT] == 1


def test_long_prompts_that_are_few_count_in_the_usual_rate() -> None:
    """One window in four has the lump of a prompt: their median would say the pool stands still."""
    watch = Watch(PoolConfig(ttl_s=1e6, t_max_s=20.0))
    up(watch, 1)
    queue(watch, "a", TenantTerms(1000, 8, 900, 1), 12, prompt=900)
    for _ in range(8):
        for _ in range(4):
            watch.ticked(after=1.0)
        watch.finished(flying(watch, "a")[0], 1)
    assert watch.snapshot.rate_milli == 7 * 902_000 // 32  # the eighth end is in no window yet
