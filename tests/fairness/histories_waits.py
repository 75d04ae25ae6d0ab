"""Histories of misfits, pins, the urgent lane, locality, blocks and restarts, each sharp.

Every one takes a fresh `Watch`, which checks all promises after each event; what a history asserts
itself is that the weaker rule that it refutes would have failed in it.
"""

from fairness import events
from fairness.types import GrantReason, MissReason, PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch
from tests.fairness.playing import UNIT, flying, held, queue, run, until_pinned, up


def small_stream_around_a_large_request(watch: Watch) -> list[str]:
    """Tenant f's small requests leave no room for g's large one, which they pass."""
    f, g = TenantTerms(1000, 8, 16, 400), TenantTerms(1000, 4, 400, 8)
    up(watch, 4, kv_tokens=448)
    queue(watch, "f", f, 2, prompt=16, output=8)
    big = queue(watch, "g", g, 2, prompt=400)
    queue(watch, "f", f, 60, prompt=16, output=8)
    return big


def misfit_is_passed_k_times_then_pinned(watch: Watch) -> None:
    """Were there no K, f's stream would hold g back for as long as it lasts."""
    big = small_stream_around_a_large_request(watch)[0]
    until_pinned(watch)
    assert watch.snapshot.pinned == big
    assert watch.live[big].passes == watch.config.max_passes
    assert watch.tenant("g").service_milli == 400 * UNIT
    while flying(watch, "f"):
        watch.finished(flying(watch, "f")[0], 1)
    assert flying(watch, "g") == [big]
    assert watch.tenant("f").queued > 40


def huge_request_fits_only_an_empty_replica(watch: Watch) -> None:
    """It is as large as a replica: that one is held empty for it, and the other goes on."""
    f, g = TenantTerms(1000, 9, 15, 300), TenantTerms(1000, 2, 700, 4)
    for name, blocks in [("r", 40), ("s", 20)]:
        watch.replica_up(name, ReplicaCapacity(3, 16 * blocks))
    queue(watch, "f", f, 60, prompt=15, output=2)
    [huge] = queue(watch, "g", g, 1, prompt=639, output=0)
    until_pinned(watch)
    assert held(watch) == "r"
    before = watch.grants
    there = [name for name in flying(watch, "f") if watch.live[name].replica == "r"]
    for _ in range(3):
        watch.finished(next(n for n in flying(watch, "f") if watch.live[n].replica == "s"), 2)
    assert watch.grants == before + 3
    for name in there[1:]:
        watch.finished(name, 2)
    assert watch.live[huge].replica is None
    watch.finished(there[0], 2)
    assert watch.live[huge].replica == "r"


def hold_lets_others_go_beyond_min_and_slack(watch: Watch) -> None:
    """While g's request is held for, f goes far beyond where g stood.

    Were the pin charged only at its dispatch, g would still be the smallest, and f's grants beyond
    min + Z. Charged at once, g is caught up, and its next misfit at K makes everybody wait.
    """
    f, g = TenantTerms(1000, 9, 15, 150), TenantTerms(1000, 2, 700, 4)
    for name in "rs":
        watch.replica_up(name, ReplicaCapacity(3, 16 * 40))
    queue(watch, "f", f, 200, prompt=15, output=2)
    huge = queue(watch, "g", g, 2, prompt=600, output=0)
    until_pinned(watch)
    assert watch.snapshot.pinned == huge[0]
    stood = watch.tenant("g").counter - 600 * UNIT
    beyond = waited = 0
    while others := [n for n in flying(watch, "f") if watch.live[n].replica != held(watch)]:
        effects = watch.finished(others[0], 2)
        grants = [effect for effect in effects if isinstance(effect, events.Granted)]
        beyond += sum(grant.counter > stood + watch.slack_now("f") for grant in grants)
        waited += watch.turns.must_wait
    assert beyond > 8
    assert watch.live[huge[1]].passes == watch.config.max_passes
    assert waited > 2
    assert watch.tenant("f").queued > 100


def pinned_replica_is_lost(watch: Watch) -> None:
    """The pinned request waits its turn again, under its charge, until nothing could hold it."""
    f, g = TenantTerms(1000, 9, 15, 300), TenantTerms(1000, 2, 700, 4)
    for name, blocks in [("r", 40), ("s", 40), ("t", 20)]:
        watch.replica_up(name, ReplicaCapacity(2, 16 * blocks))
    queue(watch, "f", f, 120, prompt=15, output=2)
    [huge] = queue(watch, "g", g, 1, prompt=600, output=0)
    until_pinned(watch)
    first = held(watch)
    effects = watch.replica_lost(first)
    assert [e.request for e in effects if isinstance(e, events.Unpinned)] == [huge]
    assert watch.tenant("g").backlogged
    assert watch.live[huge].waits
    until_pinned(watch)
    assert {held(watch), first} == {"r", "s"}
    assert watch.tenant("g").service_milli == 600 * UNIT
    effects = watch.replica_drained(held(watch))
    assert [e.request for e in effects if isinstance(e, events.Refused)] == [huge]
    assert watch.snapshot.pinned is None
    assert [e.service_milli for e in effects if isinstance(e, events.Forgotten)] == [0]


def weight_changes_while_pinned(watch: Watch) -> None:
    """Charged at one weight and given back at another: the lag in tokens is as if neither was."""
    big, other = small_stream_around_a_large_request(watch)
    lag = watch.account("g").raw - watch.snapshot.floor * 1000
    until_pinned(watch)
    watch.tenant_changed("g", TenantTerms(250, 4, 400, 8))
    watch.cancelled(big)
    account = watch.account("g")
    moved = account.raw - watch.snapshot.floor * 250
    assert watch.tenant("g").service_milli == 0
    assert watch.live[other].granted is False
    assert moved <= lag
    assert watch.tenant("g").counter * 250 == account.raw - account.raw % 250


def urgent_lane_with_a_deep_lag(watch: Watch) -> None:
    """Tenant f is far ahead: its overdue head waits until the others are within its Z.

    Let by at any lag, age alone would decide, and that is first come, first served.
    """
    f, g = TenantTerms(1000, 4, 16, 200), TenantTerms(1000, 4, 16, 200)
    up(watch, 4)
    long = queue(watch, "f", f, 4, prompt=16)
    queue(watch, "g", g, 1, prompt=16)
    last = queue(watch, "g", g, 60, prompt=16, output=100)[-1]
    for name in long:
        watch.emitted(name, 199)
    watch.finished(long[0], 200)
    [overdue] = queue(watch, "f", f, 1, prompt=16, output=4)
    assert watch.gap("f", "g") > 2 * watch.slack_now("f")
    effects = watch.ticked(after=90.0)
    missed = {e.request: e.reason for e in effects if isinstance(e, events.Missed)}
    assert missed[overdue] is MissReason.BEYOND_SLACK
    reasons = []
    while watch.live[overdue].waits:
        assert watch.live[last].waits
        effects = watch.finished(flying(watch, "g")[0], 100)
        reasons += [e.reason for e in effects if isinstance(e, events.Granted)]
    assert watch.live[overdue].replica
    assert len(reasons) > 3
    assert reasons[-1] is GrantReason.URGENT
    assert watch.tenant("f").counter > watch.tenant("g").counter


def urgent_budget_is_exhausted(watch: Watch) -> None:
    """Every head is overdue all the time: the lane lets few by, counters decide about the others.

    Without a budget each of these grants would be urgent, in the order of arrival.
    """
    terms, names = TenantTerms(1000, 5, 16, 100), "abcdefgh"
    up(watch, 3)
    for tenant in names:
        queue(watch, tenant, terms, 20, prompt=16, output=20)
    effects = []
    for _ in range(40):
        effects += watch.ticked(after=6.0)
        assert all(watch.account(t).head.deadline <= watch.now for t in names)
        for _ in range(2):
            tenant = next(t for t in names if flying(watch, t))
            effects += watch.finished(flying(watch, tenant)[0], 16)
    reasons = [effect.reason for effect in effects if isinstance(effect, events.Granted)]
    assert reasons.count(GrantReason.URGENT) == watch.snapshot.urgent_grants > 1
    assert reasons.count(GrantReason.TURN) > 15 * watch.snapshot.urgent_grants
    assert watch.snapshot.missed[MissReason.BUDGET] > 20


urgent_budget_is_exhausted.config = PoolConfig(ttl_s=7200.0, t_max_s=5.0)


def waiting_ends_at_the_ttl(watch: Watch) -> None:
    """Whether it waits for the first time, again, or pinned: nothing is kept beyond its TTL."""
    f, g = TenantTerms(1000, 8, 16, 400), TenantTerms(1000, 4, 400, 8)
    up(watch, 4, kv_tokens=448)
    queue(watch, "f", f, 2, prompt=16, output=8)
    [big] = queue(watch, "g", g, 1, prompt=400)
    queue(watch, "f", f, 12, prompt=16, output=8)
    until_pinned(watch)
    again, begun = flying(watch, "f")[:2]
    watch.emitted(begun, 1)
    watch.ticked(after=119.0)
    watch.requeued(again)
    watch.ticked(after=0.5)
    assert watch.snapshot.pinned == big
    waiting = [name for name, seen in watch.live.items() if seen.waits]
    assert again in waiting
    effects = watch.ticked(after=0.5)
    expired = [effect.request for effect in effects if isinstance(effect, events.Expired)]
    assert expired == sorted({*waiting, big}, key=expired.index)
    assert watch.snapshot.pinned is None
    assert all(t.queued == 0 for t in watch.snapshot.tenants)
    assert begun in flying(watch, "f")


def locality_overtakes_k_times(watch: Watch) -> None:
    """The head has nothing cached, all that come after it have: it is passed K times, then goes.

    Whatever is cached, tenant g goes when its counter is the smallest.
    """
    terms = TenantTerms(1000, 2, 64, 8)
    up(watch, 1)
    hot = {"prefix": (1, 2, 3)}
    for i in range(2):
        watch.enqueued(f"hot{i}", "f", terms, 64, 8, **hot)
    watch.enqueued("cold", "f", terms, 64, 8, prefix=(9,))
    for i in range(2, 30):
        watch.enqueued(f"hot{i}", "f", terms, 64, 8, **hot)
    queue(watch, "g", TenantTerms(1000, 1, 64, 8), 20, prompt=64)
    while watch.live["cold"].waits:
        tenant = "f" if flying(watch, "f") else "g"
        watch.finished(flying(watch, tenant)[0], 1)
    assert watch.live["cold"].overtakes == watch.config.max_passes
    assert sum(name.startswith("hot") for name in watch.live) > 15
    assert flying(watch, "f") or flying(watch, "g")


def blocked_for_an_hour_with_its_clock_stopped(watch: Watch) -> None:
    """The hour does not count against the head, and earns its tenant nothing either."""
    f, g = TenantTerms(1000, 8, 10, 10), TenantTerms(1000, 2, 10, 10)
    up(watch, 3)
    silent = queue(watch, "g", g, 1, prompt=10)[0]
    queue(watch, "f", f, 20, prompt=10)
    [head] = queue(watch, "g", g, 1, prompt=10)
    deadline = watch.live[head].deadline
    watch.tenant_changed("g", TenantTerms(1000, 1, 10, 10), after=30.0)
    assert watch.live[head].left == deadline - 30.0
    for _ in range(36):
        watch.ticked(after=100.0)
        queue(watch, "f", f, 3, prompt=10)
        run(watch, "f", 10)
    assert deadline < watch.now
    floor = watch.snapshot.floor
    assert watch.tenant("g").counter < floor
    effects = watch.finished(silent, 1)
    assert not any(isinstance(effect, events.Missed) for effect in effects)
    assert watch.live[head].deadline == watch.now + deadline - 30.0
    assert watch.tenant("g").counter >= floor


blocked_for_an_hour_with_its_clock_stopped.config = PoolConfig(ttl_s=7200.0)


def restart_with_work_in_flight(watch: Watch) -> None:
    """What has begun keeps its charge, and what has not is refunded, once."""
    f, g = TenantTerms(1000, 4, 100, 10), TenantTerms(1000, 4, 100, 10)
    up(watch, 3)
    begun, silent = queue(watch, "f", f, 2, prompt=100)
    again = queue(watch, "g", g, 4, prompt=100)
    watch.corrected(begun, 100, 50)
    watch.emitted(begun, 3)
    watch.requeued(again[0])
    service = watch.tenant("f").service_milli
    assert service == 200 * UNIT - 45 * UNIT + 6 * UNIT
    effects = watch.restarted(2)
    assert {e.tenant: e.service_milli for e in effects} == {"g": 0}
    assert watch.tenant("f").service_milli == service - 100 * UNIT
    up(watch, 3)
    for name in (begun, silent):
        watch.finished(name, 10)
        watch.not_started(name)
    assert watch.tenant("f").service_milli == service - 100 * UNIT
    queue(watch, "g", g, 4, prompt=100)
    queue(watch, "f", f, 4, prompt=100)
    for _ in range(6):
        run(watch, "g", 10)
        run(watch, "f", 10)


HISTORIES = (
    misfit_is_passed_k_times_then_pinned,
    huge_request_fits_only_an_empty_replica,
    hold_lets_others_go_beyond_min_and_slack,
    pinned_replica_is_lost,
    weight_changes_while_pinned,
    urgent_lane_with_a_deep_lag,
    urgent_budget_is_exhausted,
    waiting_ends_at_the_ttl,
    locality_overtakes_k_times,
    blocked_for_an_hour_with_its_clock_stopped,
    restart_with_work_in_flight,
)
