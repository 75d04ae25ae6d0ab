"""The rules one at a time: what each event does to the queue, the charges and the credit."""

import pytest

from fairness import events
from fairness.metrics import jain
from fairness.policy import FcfsPolicy
from fairness.types import PoolConfig, RefusalReason, ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch

TERMS = TenantTerms(1000, 8, 100, 50)


@pytest.fixture
def watch() -> Watch:
    watch = Watch(PoolConfig(ttl_s=30.0))
    watch.replica_up("r", ReplicaCapacity(1, 4096))
    return watch


def enqueue(watch, name, tenant="a", prompt=10, output=5, terms=TERMS, **more):
    return watch.enqueued(name, tenant, terms, prompt, output, **more)


def granted(effects) -> list[str]:
    return [effect.request for effect in effects if isinstance(effect, events.Granted)]


def test_the_prompt_is_charged_whole_at_grant_and_hits_are_taken_off(watch) -> None:
    [_, grant] = enqueue(watch, "q", prompt=100)
    assert grant.charge_milli == 100_000
    watch.corrected("q", 100, 96)
    assert watch.tenant("a").service_milli == 4 * 1000 + 96 * 100
    watch.emitted("q", 3)
    watch.finished("q", 5)
    assert watch.live == {}
    assert watch.service["a"] == 13_600 + 5 * 2000


def test_max_tokens_cost_nothing_until_they_are_emitted(watch) -> None:
    enqueue(watch, "q", prompt=1, output=50)
    assert watch.tenant("a").service_milli == 1000


def test_output_is_a_high_water_mark(watch) -> None:
    enqueue(watch, "q", prompt=1)
    for so_far in (3, 1, 3, 2):
        watch.emitted("q", so_far)
    assert watch.tenant("a").service_milli == 1000 + 3 * 2000


def test_output_beyond_what_was_asked_is_counted_not_charged(watch) -> None:
    enqueue(watch, "q", prompt=1, output=5)
    enqueue(watch, "next", prompt=1)
    enqueue(watch, "last", prompt=1)
    watch.finished("q", 9)
    assert watch.tenant("a").uncharged_tokens == 4
    assert watch.tenant("a").service_milli == 1000 * 3 + 5 * 2000


def test_the_remainder_of_a_division_by_weight_is_never_lost(watch) -> None:
    terms = TenantTerms(3000, 8, 100, 50)
    watch.replica_up("r", ReplicaCapacity(40, 1 << 16))
    enqueue(watch, "blocker", "b", terms=TenantTerms(1000, 1, 100, 50))
    for i in range(30):
        enqueue(watch, f"q{i}", terms=terms, prompt=1)
        watch.corrected(f"q{i}", 1, 1)
        watch.finished(f"q{i}", 0)
    assert watch.tenant("a").counter == 30 * 100 * 1000 // 3000


@pytest.mark.parametrize("end", ["cancelled", "ticked"])
def test_leaving_the_queue_costs_nothing(watch, end) -> None:
    enqueue(watch, "x", prompt=10)
    enqueue(watch, "y", prompt=10)
    enqueue(watch, "q", "b")
    if end == "cancelled":
        watch.cancelled("q")
    else:
        effects = watch.ticked(after=31.0)
        assert [type(effect) for effect in effects] == [events.Expired, events.Forgotten]
        assert effects[0].replicas_up == 1
    assert all(t.tenant != "b" for t in watch.snapshot.tenants)


def test_expiry_counts_from_acceptance_and_tells_when_no_replica_was_up(watch) -> None:
    enqueue(watch, "q")
    watch.replica_lost("r")
    assert watch.tenant("a").queued == 1
    [expired, forgotten] = watch.ticked(after=30.0)
    assert (expired.request, expired.replicas_up) == ("q", 0)
    assert forgotten.service_milli == 0


def test_a_request_that_never_began_is_refunded_whole(watch) -> None:
    enqueue(watch, "q", prompt=100)
    enqueue(watch, "p", prompt=1)
    watch.corrected("q", 100, 50)
    watch.not_started("q")
    assert watch.tenant("a").service_milli == 1000


def test_a_request_cancelled_after_its_first_token_keeps_its_charges(watch) -> None:
    enqueue(watch, "q", prompt=100)
    enqueue(watch, "p", prompt=1)
    watch.emitted("q", 2)
    watch.not_started("q")
    assert watch.tenant("a").service_milli == 100_000 + 4000 + 1000


def test_a_retry_goes_to_the_head_of_its_queue_under_its_charge(watch) -> None:
    enqueue(watch, "q", prompt=10)
    enqueue(watch, "r", prompt=10)
    enqueue(watch, "s", prompt=10)
    [grant] = watch.requeued("q")
    assert (grant.request, grant.charge_milli) == ("q", 0)
    assert watch.tenant("a").service_milli == 20_000


def test_a_request_that_waits_again_keeps_its_deadline(watch) -> None:
    enqueue(watch, "q")
    watch.ticked(after=29.0)
    watch.replica_lost("r")
    assert any(isinstance(effect, events.Expired) for effect in watch.ticked(after=1.0))


def test_a_lost_replica_sends_unstarted_requests_on_and_leaves_begun_ones(watch) -> None:
    enqueue(watch, "begun")
    watch.emitted("begun", 1)
    enqueue(watch, "unstarted")
    watch.replica_lost("r")
    effects = watch.replica_up("s", ReplicaCapacity(1, 4096))
    assert granted(effects) == ["unstarted"]
    assert watch.tenant("a").in_flight == 2
    watch.finished("begun", 1)
    assert watch.tenant("a").in_flight == 1


def test_a_drained_replica_gets_nothing_more_and_finishes_what_it_has(watch) -> None:
    enqueue(watch, "q")
    watch.replica_drained("r")
    assert granted(enqueue(watch, "p")) == []
    watch.finished("q", 1)
    assert watch.snapshot.replicas[0].in_flight == 0
    assert granted(watch.replica_up("r", ReplicaCapacity(1, 4096))) == ["p"]


def test_concurrency_is_enforced_at_grant_and_the_rest_waits() -> None:
    watch = Watch()
    watch.replica_up("r", ReplicaCapacity(9, 4096))
    terms = TenantTerms(1000, 2, 100, 50)
    for i in range(4):
        enqueue(watch, f"q{i}", terms=terms)
    tenant = watch.tenant("a")
    assert (tenant.in_flight, tenant.queued, tenant.backlogged) == (2, 2, False)
    assert granted(watch.finished("q0", 1)) == ["q2"]
    assert granted(watch.tenant_changed("a", TenantTerms(1000, 3, 100, 50))) == ["q3"]


def test_a_blocked_tenant_does_not_stop_the_others() -> None:
    watch = Watch()
    watch.replica_up("r", ReplicaCapacity(9, 4096))
    enqueue(watch, "a0", terms=TenantTerms(1000, 1, 100, 50))
    enqueue(watch, "a1", terms=TenantTerms(1000, 1, 100, 50))
    assert granted(enqueue(watch, "b0", "b")) == ["b0"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": 101}, RefusalReason.PROMPT_LIMIT),
        ({"output": 51}, RefusalReason.OUTPUT_LIMIT),
        ({"sequences": 9}, RefusalReason.CONCURRENCY),
        ({"sequences": 3}, RefusalReason.NO_REPLICA_FITS),
    ],
)
def test_what_can_never_be_granted_is_refused_at_once(watch, fields, reason) -> None:
    [refused] = enqueue(watch, "q", **fields)
    assert refused.reason is reason


def test_a_prompt_that_fits_no_empty_replica_is_refused_also_when_replicas_shrink(watch) -> None:
    terms = TenantTerms(1000, 8, 9000, 50)
    assert enqueue(watch, "huge", prompt=4096, terms=terms)[0].reason
    enqueue(watch, "first", prompt=1, terms=terms)
    enqueue(watch, "second", prompt=1, terms=terms)
    enqueue(watch, "third", prompt=4000, terms=terms)
    effects = watch.replica_up("r", ReplicaCapacity(1, 1024))
    assert [e.request for e in effects if isinstance(e, events.Refused)] == ["third"]


def test_a_queued_request_is_refused_when_its_tenant_may_never_run_it() -> None:
    watch = Watch()
    enqueue(watch, "q", sequences=4)
    effects = watch.tenant_changed("a", TenantTerms(1000, 3, 100, 50))
    assert effects[0].reason is RefusalReason.CONCURRENCY


def test_ties_go_to_the_smaller_tenant_id_and_then_alternate() -> None:
    watch = Watch()
    for tenant in "cab":
        for i in range(2):
            enqueue(watch, f"{tenant}{i}", tenant)
    effects = watch.replica_up("r", ReplicaCapacity(5, 4096))
    assert granted(effects) == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_an_empty_queue_keeps_its_debt(watch) -> None:
    enqueue(watch, "a0", prompt=100, output=50)
    enqueue(watch, "b0", "b", prompt=1)
    watch.finished("a0", 50)
    watch.finished("b0", 1)
    for i in range(3):
        enqueue(watch, f"b{i + 1}", "b", prompt=1)
    effects = enqueue(watch, "a1", prompt=1)
    assert not any(isinstance(effect, events.Lifted) for effect in effects)
    assert watch.tenant("a").counter == 200_000


def test_fcfs_follows_arrival_across_tenants() -> None:
    watch = Watch(policy=FcfsPolicy(), promises_bound=False)
    for name in ("a0", "a1", "b0", "a2"):
        enqueue(watch, name, name[0])
    assert granted(watch.replica_up("r", ReplicaCapacity(3, 4096))) == ["a0", "a1", "b0", "a2"]


def test_events_out_of_place_change_nothing(watch) -> None:
    enqueue(watch, "q")
    enqueue(watch, "p")
    enqueue(watch, "waits")
    before = watch.snapshot
    for kind in ("emitted", "finished"):
        assert getattr(watch, kind)("waits", 3) == ()
        assert getattr(watch, kind)("nobody", 3) == ()
    assert watch.corrected("nobody", 1, 0) == ()
    for kind in ("not_started", "requeued"):
        assert getattr(watch, kind)("waits") == ()
    assert watch.cancelled("q") == ()
    assert enqueue(watch, "q") == ()
    assert watch.replica_lost("elsewhere") == watch.replica_drained("elsewhere") == ()
    assert watch.tenant_changed("stranger", TERMS) == ()
    assert watch.snapshot == before


def test_jain() -> None:
    assert jain([]) == jain([5, 5, 5]) == 1.0
    assert jain([1, 0, 0, 0]) == 0.25


def test_the_snapshot_compares_rates_since_each_tenant_waits(watch) -> None:
    watch.replica_up("r", ReplicaCapacity(3, 4096))
    for i in range(5):
        enqueue(watch, f"a{i}", output=50)
    enqueue(watch, "b0", "b", output=50)
    watch.emitted("a0", 50, after=10.0)
    assert watch.snapshot.jain == pytest.approx(0.5)
