"""The shell round the dispatcher under races: what one request meets must not reach another."""

import asyncio
import json
import time
from uuid import UUID

import pytest

from engine.protocol.errors import InvalidRequest
from engine.protocol.instruments import Registry
from fairness.dispatcher import Dispatcher
from fairness.events import (
    Cancelled,
    Dispatched,
    Enqueued,
    Expired,
    Finished,
    Granted,
    Headed,
    Missed,
    NotStarted,
    Pinned,
    Refused,
    ReplicaDrained,
    Ticked,
    Unpinned,
)
from fairness.policy import VtcPolicy
from fairness.types import (
    GrantReason,
    MissReason,
    PoolConfig,
    RefusalReason,
    ReplicaCapacity,
    TenantTerms,
)
from gateway.clock import pool_clock
from gateway.decisions import Decisions
from gateway.errors import (
    LimitExceeded,
    NoHealthyUpstream,
    NoReplicaFits,
    PredictedWait,
    QueueTimeout,
    answer,
)
from gateway.queue import PoolQueue
from gateway.telemetry import GatewayMetrics
from gateway.ticket import Phase

TENANT = UUID(int=1)
TERMS = TenantTerms(1000, 8, 100, 10)
TTL_S = 120.0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    waits = []
    made = PoolQueue(
        "pool",
        Dispatcher(PoolConfig(ttl_s=TTL_S), VtcPolicy()),
        flush_interval_s=0.01,
        on_waited=lambda outcome, _seconds: waits.append(outcome),
        clock=clock,
    )
    made.waits = waits
    return made


def enqueue(queue, name, prompt_tokens=10, sequences=1):
    ticket = queue.ticket(
        name,
        TENANT,
        TERMS,
        prompt_tokens=prompt_tokens,
        max_output_tokens=10,
        sequences=sequences,
        affinity=0,
        prompt_param="prompt",
    )
    queue.enqueue(ticket)
    return ticket


async def left_waiting(ticket):
    """A handler that waits for its grant was interrupted and has not run yet."""

    async def handler():
        await ticket.granted

    task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    task.cancel()
    return task


def flying(queue):
    return sum(replica.in_flight for replica in queue.snapshot().replicas)


async def test_a_grant_that_meets_an_interrupted_waiter_harms_nobody(queue):
    leaves, stays = enqueue(queue, "leaves"), enqueue(queue, "stays")
    await left_waiting(leaves)
    queue.replica_up("r", ReplicaCapacity(slots=4, kv_tokens=640))
    assert stays.granted.result() == "r"
    queue.close(leaves)
    queue.close(stays)
    assert flying(queue) == 0
    assert queue.snapshot().tenants == ()


async def test_an_expiry_that_meets_an_interrupted_waiter_harms_nobody(queue, clock):
    leaves, stays = enqueue(queue, "leaves"), enqueue(queue, "stays")
    await left_waiting(leaves)
    clock.now = TTL_S
    queue.tick()
    assert isinstance(stays.granted.exception(), NoHealthyUpstream)
    assert {leaves.phase, stays.phase} == {Phase.OVER}


async def test_leaving_after_the_time_to_live_and_before_the_tick(queue, clock):
    queue.replica_up("r", ReplicaCapacity(slots=1, kv_tokens=160))
    runs = [enqueue(queue, "one"), enqueue(queue, "two")]
    late, later = enqueue(queue, "late"), enqueue(queue, "later")
    clock.now = TTL_S
    queue.close(late)
    assert isinstance(later.granted.exception(), QueueTimeout)
    assert queue.waits.count("cancelled") == 1
    for ticket in runs:
        queue.close(ticket)
    assert flying(queue) == 0


async def test_a_request_whose_only_fitting_replica_left_is_told_to_come_back(queue):
    queue.replica_up("small", ReplicaCapacity(slots=1, kv_tokens=32))
    queue.replica_up("large", ReplicaCapacity(slots=1, kv_tokens=320))
    for name in ("one", "two"):
        enqueue(queue, name, prompt_tokens=100)
    waits = enqueue(queue, "waits", prompt_tokens=100)
    queue.replica_lost("large")
    assert isinstance(waits.granted.exception(), NoHealthyUpstream)
    assert waits.granted.exception().retry_after_s


async def test_a_count_the_engine_does_not_give_is_not_taken_for_none_cached(queue):
    queue.replica_up("r", ReplicaCapacity(slots=1, kv_tokens=160))
    for name, cached in (("said", 0), ("unsaid", None)):
        ticket = enqueue(queue, name)
        queue.begun(ticket)
        if cached is not None:
            queue.cached(ticket, cached)
        queue.emitted(ticket, 1)
        await asyncio.sleep(0.03)
        (tenant,) = queue.snapshot().tenants
        assert (tenant.unsettled_milli > 0) is (cached is None)
        queue.close(ticket)


async def test_a_concurrency_that_shrinks_below_what_waits_is_named(queue):
    waits, other = enqueue(queue, "three", sequences=3), enqueue(queue, "one")
    queue.tenant_changed(TENANT, TenantTerms(1000, 2, 100, 10))
    refusal = waits.granted.exception()
    assert isinstance(refusal, InvalidRequest)
    assert (refusal.param, refusal.code) == ("n", "invalid_value")
    assert "concurrency" in refusal.message
    assert not other.granted.done()
    queue.close(waits)
    queue.close(other)
    assert flying(queue) == 0


class Scripted:
    """A dispatcher that answers each event with the effects it was told, and keeps the events."""

    def __init__(self):
        self.effects, self.events, self.waits = {}, [], {}

    def apply(self, event):
        self.events.append(event)
        return tuple(self.effects.get(type(event), ()))

    def predicted_wait_s(self, tenant):
        return self.waits.get(tenant, 0.0)


@pytest.fixture
def scripted(clock):
    dispatcher = Scripted()
    seen = []
    made = PoolQueue(
        "pool",
        dispatcher,
        flush_interval_s=0.01,
        on_granted=seen.append,
        applied=lambda event, effects: seen.extend([event, *effects]),
        clock=clock,
    )
    made.dispatcher, made.seen = dispatcher, seen
    return made


PIN = Pinned(0.0, "r", str(TENANT), "replica", 10_000, 0, 0)
DISPATCH = Dispatched(7.0, "r", str(TENANT), "replica")


async def test_a_pinned_request_waits_until_it_is_dispatched(scripted):
    scripted.dispatcher.effects = {Enqueued: [PIN], Ticked: [DISPATCH]}
    ticket = enqueue(scripted, "r")
    assert (ticket.phase, ticket.replica, ticket.granted.done()) == (Phase.WAITING, None, False)
    assert "r" not in scripted.seen  # its place in the queue is still taken
    scripted.tick()
    assert (ticket.phase, ticket.granted.result()) == (Phase.GRANTED, "replica")
    assert (ticket.granted_at, scripted.seen[-1]) == (7.0, "r")


async def test_who_leaves_while_pinned_is_cancelled_and_no_replica_was_asked(scripted):
    scripted.dispatcher.effects = {Enqueued: [PIN]}
    ticket = enqueue(scripted, "r")
    scripted.close(ticket)
    assert scripted.dispatcher.events[-1] == Cancelled(0.0, "r")


async def test_what_is_pinned_and_whose_replica_leaves_waits_on(scripted):
    scripted.dispatcher.effects = {Enqueued: [PIN]}
    scripted.replica_up("replica", ReplicaCapacity(slots=1, kv_tokens=160))
    ticket = enqueue(scripted, "r")
    unpinned = Unpinned(1.0, "r", str(TENANT))
    scripted.dispatcher.effects = {ReplicaDrained: [unpinned], Ticked: [DISPATCH]}
    scripted.replica_lost("replica")
    assert (ticket.phase, ticket.granted.done()) == (Phase.WAITING, False)
    scripted.tick()
    assert ticket.granted.result() == "replica"


@pytest.mark.parametrize(("sent", "ends"), [(False, NotStarted), (True, Finished)])
async def test_who_leaves_after_its_grant_owes_what_an_engine_may_have_begun(scripted, sent, ends):
    granted = Granted(0.0, "r", str(TENANT), "replica", 1, GrantReason.TURN, 0, 0)
    scripted.dispatcher.effects = {Enqueued: [granted]}
    ticket = enqueue(scripted, "r")
    ticket.sent = sent
    scripted.close(ticket)
    assert type(scripted.dispatcher.events[-1]) is ends


async def test_what_a_thread_sees_during_an_event_is_not_kept_for_others(queue, monkeypatch):
    queue.replica_up("replica", ReplicaCapacity(1, 64))
    dispatcher = queue._dispatcher
    taken = dispatcher.snapshot

    def interrupted():
        monkeypatch.setattr(dispatcher, "snapshot", taken)
        early = taken()
        enqueue(queue, "r")  # the event loop goes on while the thread looks
        return early

    monkeypatch.setattr(dispatcher, "snapshot", interrupted)
    assert queue.snapshot().tenants == ()
    assert [one.in_flight for one in queue.snapshot().tenants] == [1]


async def test_service_is_read_while_it_is_read_elsewhere(queue):
    queue.replica_up("replica", ReplicaCapacity(2, 64))
    enqueue(queue, "r")
    reading = queue.service_by_tenant()
    next(reading)
    queue._service_milli["another"] = 1  # what a reader in another thread adds
    assert list(reading) == []


async def test_time_is_no_event_while_nobody_waits(scripted):
    scripted.tick()
    ticket = enqueue(scripted, "r")
    scripted.tick()
    granted = Granted(0.0, "r", str(TENANT), "replica", 1, GrantReason.TURN, 0, 0)
    scripted.dispatcher.effects = {Ticked: [granted]}
    scripted.tick()
    scripted.tick()
    scripted.close(ticket)
    scripted.tick()
    assert [type(event) for event in scripted.dispatcher.events].count(Ticked) == 2


async def test_every_event_is_seen_with_its_effects_before_they_are_acted_on(scripted):
    headed = Headed(0.0, "r", str(TENANT), 2.0, 1, 1)
    granted = Granted(0.0, "r", str(TENANT), "replica", 1, GrantReason.TURN, 0, 0)
    scripted.dispatcher.effects = {Enqueued: [headed, granted]}
    enqueue(scripted, "r")
    assert scripted.seen == [scripted.dispatcher.events[0], headed, granted, "r"]


def refused(reason, retry_after_s=None):
    return Refused(0.0, "r", "t", reason, retry_after_s)


DROPS = [
    (Expired(0.0, "r", "t", 1), "expired", QueueTimeout, 429, "queue_timeout"),
    (Expired(0.0, "r", "t", 0), "no_healthy_upstream", NoHealthyUpstream, 503, None),
    (Refused(0.0, "r", "t"), "no_replica_fits", NoReplicaFits, 503, None),
    (refused(RefusalReason.PREDICTED_WAIT, 17.5), "predicted_wait", PredictedWait, 429, None),
    (refused(RefusalReason.RATE, 3.0), "rate", LimitExceeded, 429, "rate_limit_exceeded"),
    (
        refused(RefusalReason.PROMPT_LIMIT),
        "prompt_limit",
        InvalidRequest,
        400,
        "context_length_exceeded",
    ),
    (refused(RefusalReason.OUTPUT_LIMIT), "output_limit", InvalidRequest, 400, "invalid_value"),
    (refused(RefusalReason.CONCURRENCY), "concurrency", InvalidRequest, 400, "invalid_value"),
]


@pytest.mark.parametrize(
    ("effect", "reason", "kind", "status", "code"), DROPS, ids=[drop[1] for drop in DROPS]
)
async def test_every_drop_has_a_reason_an_error_and_a_time(
    scripted, effect, reason, kind, status, code
):
    registry = Registry()
    Decisions("pool", GatewayMetrics(registry)).note([effect])
    (family,) = (one for one in registry.families() if one.name == "evenhand_drops_total")
    assert [(labels, child.value) for labels, child in family.children()] == [(("pool", reason), 1)]
    scripted.dispatcher.effects = {Enqueued: [effect]}
    error = enqueue(scripted, "r").granted.exception()
    assert type(error) is kind
    reply = answer(error)
    assert reply.status == status
    assert json.loads(reply.body)["error"]["code"] == (code or reason)
    if status != 400:
        assert dict(reply.headers)[b"retry-after-ms"]
    if effect.retry_after_s if isinstance(effect, Refused) else None:
        assert int(dict(reply.headers)[b"retry-after-ms"]) == 1000 * effect.retry_after_s


@pytest.mark.parametrize(("wait_s", "told_s"), [(42.5, 42.5), (0.2, 1.0), (0.0, 5.0)])
async def test_who_waited_too_long_is_told_when_its_queue_is_served(scripted, wait_s, told_s):
    scripted.dispatcher.waits = {"t": wait_s}
    scripted.dispatcher.effects = {Enqueued: [Expired(0.0, "r", "t", 1)]}
    assert enqueue(scripted, "r").granted.exception().retry_after_s == told_s


async def test_a_missed_deadline_is_logged_once_by_reason_and_label(caplog):
    registry = Registry()
    metrics = GatewayMetrics(registry)
    metrics.tenant(str(TENANT), "acme")
    missed = Missed(0.0, "req_1", str(TENANT), MissReason.BEYOND_SLACK)
    with caplog.at_level("INFO"):
        Decisions("pool", metrics).note([missed])
    (record,) = caplog.records
    assert record.levelname == "INFO"
    for word in ("acme", "req_1", "beyond_slack", "pool"):
        assert word in record.getMessage()
    (family,) = (f for f in registry.families() if f.name == "evenhand_missed_deadlines_total")
    assert [labels for labels, _ in family.children()] == [("pool", "beyond_slack")]


def test_the_clock_never_goes_back_over_a_restart():
    clock = pool_clock()
    assert abs(clock() - time.time()) < 60
    assert clock() <= clock()
    ahead = time.time() + 10_000
    assert ahead <= pool_clock(ahead)() < ahead + 60
