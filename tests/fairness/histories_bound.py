"""Histories that broke earlier statements of the bound, each written to come as near as it can.

Every one takes a fresh `Watch`, which checks all promises after each event; what a history asserts
itself is that it is sharp: the weaker statement that it refutes does fail in it.
"""

from fairness.types import ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch
from tests.fairness.playing import ROOMY, UNIT, flying, queue, run, up


def newcomer_while_a_third_tenant_is_unsettled(watch: Watch) -> None:
    """The floor is held down by h's large unsettled prompts, and f may stand M above it."""
    h, f, g = (TenantTerms(1000, n, length, 30) for n, length in [(4, 500), (6, 5), (2, 5)])
    up(watch, 5)
    queue(watch, "h", h, 3, prompt=500, output=1)
    queue(watch, "f", f, 200, prompt=5)
    queue(watch, "h", h, 2, prompt=500, output=1)
    while watch.gap("h", "f") > UNIT * (5 + 2 * 30):
        watch.finished(flying(watch, "f")[0], 30)  # an IndexError ends it if f gets no grant
    assert len(flying(watch, "f")) == len(flying(watch, "h")) == 3
    assert watch.tenant("h").backlogged
    assert watch.snapshot.floor == 0
    queue(watch, "g", g, 5, prompt=5)
    for name in flying(watch, "f"):
        watch.emitted(name, 30)
    assert watch.gap("f", "g") > watch.jump_now("f") + watch.refund_now("g")


def rejoining_with_corrections_pending(watch: Watch) -> None:
    """Tenant g comes back to the floor, and then its old prompts turn out to have been cached."""
    f, g = TenantTerms(1000, 6, 5, 10), TenantTerms(1000, 4, 300, 1)
    up(watch, 7)
    pending = queue(watch, "g", g, 4, prompt=300)
    queue(watch, "f", f, 120, prompt=5)
    for _ in range(20):
        run(watch, "f", 10)
    assert watch.snapshot.floor > watch.tenant("g").counter
    for name in pending[:1]:
        watch.finished(name, 0)
    queue(watch, "g", g, 6, prompt=300)
    assert watch.tenant("g").backlogged
    for name in pending[1:]:
        watch.corrected(name, 300, 300)
    assert watch.tenant("g").counter < watch.snapshot.floor


def refunds_valued_at_their_cap(watch: Watch) -> None:
    """When the gap is largest nothing is left to give back, so A's value then says nothing."""
    newcomer_while_a_third_tenant_is_unsettled(watch)
    for tenant in "fgh":
        for name in flying(watch, tenant):
            watch.corrected(name, watch.live[name].prompt, 0)
            watch.emitted(name, max(1, watch.live[name].out))
    values = [tenant.unsettled_milli for tenant in watch.snapshot.tenants]
    assert not any(values)
    assert watch.gap("f", "g") > watch.jump_now("f") + sum(values)


def look_ahead_in_flight(watch: Watch) -> None:
    """One slot and one look-ahead are two outputs that f can be charged for without a grant."""
    terms = TenantTerms(1000, 4, 1, 100)
    up(watch, 1)
    queue(watch, "f", terms, 3)
    queue(watch, "g", terms, 3)
    assert len(flying(watch, "f")) == 2
    for name in flying(watch, "f"):
        watch.corrected(name, 1, 0)
        watch.emitted(name, 100)
    without = UNIT * (1 + 2 * 100) + 2 * UNIT * 1
    assert watch.gap("f", "g") > without


def weight_change_with_a_large_lag(watch: Watch) -> None:
    """Tenant f is a whole M above the floor when its weight falls: its lag in tokens is now 50 M.

    The inequality with today's M fails until f's next grant; the live bound holds over.
    """
    newcomer_while_a_third_tenant_is_unsettled(watch)
    lag = watch.tenant("f").counter - watch.snapshot.floor
    watch.tenant_changed("f", TenantTerms(50_000, 6, 5, 30))
    assert watch.tenant("f").counter - watch.snapshot.floor == lag // 50
    watch.tenant_changed("f", TenantTerms(20, 6, 5, 30))
    assert watch.tenant("f").counter - watch.snapshot.floor == 50 * lag
    present = watch.jump_now("f") + watch.refund_now("g") + watch.refund_now("h")
    assert watch.gap("f", "g") > present
    assert watch.snapshot.bound.held_over
    watch.tenant_changed("f", TenantTerms(1000, 6, 5, 30))
    assert watch.tenant("f").counter - watch.snapshot.floor == lag


def older_requests_still_open_after_a_grant(watch: Watch) -> None:
    """A grant under tighter limits does not end what older ones let in: f's old answers go on."""
    old, new = TenantTerms(1000, 8, 5, 400), TenantTerms(1000, 8, 5, 4)
    g = TenantTerms(1000, 2, 5, 4)
    up(watch, 5)
    long = queue(watch, "f", old, 5, prompt=5)
    queue(watch, "g", g, 9, prompt=5)
    queue(watch, "f", new, 2, prompt=5)
    while len(flying(watch, "f")) == len(long):
        run(watch, "g", 4)
    assert watch.tenant("f").backlogged
    assert watch.tenant("g").backlogged
    for name in long:
        watch.emitted(name, 400)
    present = watch.jump_now("f") + watch.refund_now("g") + watch.refund_now("f")
    assert watch.gap("f", "g") > present
    assert watch.snapshot.bound.held_over


def largest_refund_is_forgotten(watch: Watch) -> None:
    """Tenant f stands M above the floor, and then h, whose prompts made M so large, is gone."""
    h, f = TenantTerms(1000, 4, 500, 30), TenantTerms(1000, 6, 5, 30)
    small = TenantTerms(1000, 3, 5, 1)
    up(watch, 5)
    unsettled = queue(watch, "h", h, 3, prompt=500, output=1)
    queue(watch, "f", f, 200, prompt=5)
    more = queue(watch, "h", h, 2, prompt=500, output=1)
    while watch.gap("h", "f") > UNIT * 65:
        watch.finished(flying(watch, "f")[0], 30)
    for name in [*set(watch.live) - {*flying(watch, "f"), *unsettled, *more}, *more]:
        watch.cancelled(name)
    for name in unsettled:
        watch.not_started(name)
    assert "h" not in {tenant.tenant for tenant in watch.snapshot.tenants}
    queue(watch, "k", small, 3)
    queue(watch, "g", small, 2)
    queue(watch, "f", f, 2)
    present = watch.jump_now("f") + watch.refund_now("g") + watch.refund_now("f")
    assert watch.gap("f", "g") > present
    assert watch.snapshot.bound.held_over


def estimate_corrected_upward(watch: Watch) -> None:
    """Prompts estimated at 1 token turn out to be 200 long: counted, never charged."""
    f, g = TenantTerms(1000, 6, 200, 2), TenantTerms(1000, 1, 2, 2)
    up(watch, 5)
    queue(watch, "f", f, 9, prompt=1)
    queue(watch, "g", g, 2)
    for name in flying(watch, "f"):
        watch.corrected(name, 200, 0)
        watch.emitted(name, 2)
    assert watch.tenant("f").uncharged_tokens == 6 * 199
    assert watch.tenant("f").service_milli == 6 * UNIT * (1 + 2 * 2)


def cancel_between_hit_report_and_first_token(watch: Watch) -> None:
    """What the hit report left of the charge can still be given back, and is."""
    f, g = TenantTerms(1000, 5, 10, 10), TenantTerms(1000, 4, 300, 1)
    up(watch, 7)
    queue(watch, "g", g, 8, prompt=300)
    queue(watch, "f", f, 200, prompt=10)
    for name in flying(watch, "g"):
        watch.corrected(name, 300, 150)
    floor = watch.snapshot.floor
    for _ in range(9):
        run(watch, "f", 10)
    for name in flying(watch, "g"):
        watch.not_started(name)
    assert watch.snapshot.floor >= floor
    assert watch.tenant("g").service_milli == sum(
        seen.charged for seen in watch.live.values() if seen.spec.tenant == "g"
    )


def many_sequences_in_one_request(watch: Watch) -> None:
    """Concurrency, slots and U count sequences; the shared prompt is charged once."""
    terms = TenantTerms(1000, 4, 8, 50)
    up(watch, 4)
    for i in range(3):
        watch.enqueued(f"f{i}", "f", terms, 8, 50, 4)
    queue(watch, "g", terms, 4, prompt=8)
    assert len(flying(watch, "f")) == 1
    assert watch.tenant("f").in_flight == 4
    watch.emitted("f0", 200)
    assert watch.tenant("f").service_milli == UNIT * (8 + 2 * 200)
    watch.finished("f0", 200)
    assert watch.tenant("f").in_flight == 0


def passing_with_a_whole_slack(watch: Watch) -> None:
    """Tenant f passes a misfit while a whole Z ahead, and only then emits all that it has open.

    Farther ahead it passes no more: it may not, although a place is free.
    """
    f, g = TenantTerms(1000, 5, 1, 100), TenantTerms(1000, 4, 1, 1)
    up(watch, 4)
    first = queue(watch, "f", f, 5)[0]
    watch.enqueued("wide", "g", g, 1, 1, 4)
    queue(watch, "f", f, 3)
    watch.corrected(first, 1, 0)
    watch.finished(first, 98)
    assert len(flying(watch, "f")) == 5
    assert watch.live["wide"].passes == 1
    for name in flying(watch, "f"):
        watch.emitted(name, 100)
    without = watch.jump_now("f") + watch.refund_now("g") + watch.refund_now("f")
    assert watch.gap("f", "g") > without
    watch.finished(flying(watch, "f")[0], 100)
    assert watch.tenant("f").queued
    assert len(flying(watch, "f")) == 4
    assert watch.live["wide"].passes == 1


def corrected_while_backlogged(watch: Watch) -> None:
    """Tenant g stays backlogged; its hits take it back to where its settled work stands."""
    f, g = TenantTerms(1000, 2, 5, 10), TenantTerms(1000, 6, 300, 1)
    queue(watch, "f", f, 9, prompt=5)
    queue(watch, "g", g, 6, prompt=300)
    up(watch, 4)
    assert len(flying(watch, "g")) == 3
    for name in flying(watch, "g"):
        watch.corrected(name, 300, 300)
    assert watch.tenant("g").backlogged


def idle_tenant_returns(watch: Watch) -> None:
    """Time away earns nothing: the returning tenant starts at the floor and shares from there."""
    terms = TenantTerms(1000, 8, 10, 10)
    up(watch, 2)
    queue(watch, "g", terms, 2, prompt=10)
    run(watch, "g", 10)
    queue(watch, "f", terms, 90, prompt=10)
    for _ in range(15):
        run(watch, "f", 10)
    queue(watch, "g", terms, 45, prompt=10)
    for _ in range(12):
        run(watch, "f", 10)
        run(watch, "g", 10)


def blocked_for_long_then_unblocked(watch: Watch) -> None:
    """A tenant at its concurrency limit is idle: on unblocking it is lifted like any other."""
    f, g = TenantTerms(1000, 8, 10, 10), TenantTerms(1000, 1, 10, 10)
    up(watch, 4)
    silent = queue(watch, "g", g, 40, prompt=10)[0]
    queue(watch, "f", f, 120, prompt=10)
    for _ in range(30):
        run(watch, "f", 10)
    assert not watch.tenant("g").backlogged
    floor = watch.snapshot.floor
    watch.finished(silent, 1)
    assert watch.tenant("g").counter >= floor
    for _ in range(5):
        run(watch, "g", 10)
        run(watch, "f", 10)


def replica_dies_and_requests_run_elsewhere(watch: Watch) -> None:
    """Unstarted requests are granted again under the charge they have."""
    terms = TenantTerms(1000, 8, 10, 10)
    up(watch, 3)
    queue(watch, "f", terms, 5, prompt=10)
    queue(watch, "g", terms, 5, prompt=10)
    begun = flying(watch, "f")[0]
    watch.emitted(begun, 3)
    watch.replica_lost("r")
    watch.finished(begun, 3)
    watch.replica_up("s", ReplicaCapacity(3, ROOMY))
    for _ in range(6):
        run(watch, "f", 10)
        run(watch, "g", 10)


HISTORIES = (
    newcomer_while_a_third_tenant_is_unsettled,
    rejoining_with_corrections_pending,
    refunds_valued_at_their_cap,
    look_ahead_in_flight,
    weight_change_with_a_large_lag,
    older_requests_still_open_after_a_grant,
    largest_refund_is_forgotten,
    estimate_corrected_upward,
    cancel_between_hit_report_and_first_token,
    many_sequences_in_one_request,
    passing_with_a_whole_slack,
    corrected_while_backlogged,
    idle_tenant_returns,
    blocked_for_long_then_unblocked,
    replica_dies_and_requests_run_elsewhere,
)
