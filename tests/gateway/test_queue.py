"""The shell round the dispatcher under races: what one request meets must not reach another."""

import asyncio
from uuid import UUID

import pytest

from engine.protocol.errors import InvalidRequest
from fairness.dispatcher import Dispatcher
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from gateway.errors import NoHealthyUpstream, QueueTimeout
from gateway.queue import Phase, PoolQueue

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
        queue.begun(ticket, cached)
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
