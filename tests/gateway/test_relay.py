"""What one request does with its engine when grants and replicas change under it."""

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest

from engine.protocol.requests import Sampling
from fairness.dispatcher import Dispatcher
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from gateway.engines.port import EngineEvent
from gateway.engines.request import CacheIdentity
from gateway.queue import PoolQueue
from gateway.streaming import Relay, Upstreams
from gateway.ticket import Phase

CAPACITY = ReplicaCapacity(slots=1, kv_tokens=160)


class Stream:
    def __init__(self, output_tokens):
        self._output_tokens = output_tokens

    async def next(self):
        return [EngineEvent(cached_tokens=0, output_tokens=self._output_tokens)]

    def kill(self):
        raise AssertionError("nothing is wrong with it")


class Engine:
    """Counts what it is asked."""

    def __init__(self, output_tokens=0):
        self.asked = 0
        self._output_tokens = output_tokens

    async def start(self, _body, _headers, _choices):
        self.asked += 1
        return Stream(self._output_tokens)


def relay_over(engines, sequences=1):
    """A queue, a ticket of one prompt and one output token each, and what drives it."""
    queue = PoolQueue("pool", Dispatcher(PoolConfig(), VtcPolicy()), flush_interval_s=1)
    ticket = queue.ticket(
        "request",
        UUID(int=1),
        TenantTerms(1000, sequences, 10, 10),
        prompt_tokens=1,
        max_output_tokens=1,
        sequences=sequences,
        affinity=0,
        prompt_param="prompt",
    )
    prepared = SimpleNamespace(model="m", prompt=(1,), sampling=Sampling(n=sequences))
    exchange = SimpleNamespace(
        request_id="request",
        queue=queue,
        ticket=ticket,
        admitted=SimpleNamespace(prepared=prepared, max_tokens=1),
        prompt_tokens=1,
        cached_tokens=None,
        output_tokens=0,
        upstream_s=0.0,
    )
    relay = Relay(
        exchange,
        Upstreams(engines, suspect=queue.replica_lost),
        CacheIdentity("n", "o", 1000),
        on_granted=lambda: None,
        headers=dict,
    )
    return queue, exchange, relay


async def test_a_replica_lost_before_its_grant_was_seen_is_not_asked():
    engines = {"lost": Engine(), "other": Engine()}
    queue, exchange, relay = relay_over(engines)
    ticket = exchange.ticket
    queue.replica_up("lost", CAPACITY)
    queue.enqueue(ticket)
    first = asyncio.create_task(relay.first())
    queue.replica_lost("lost")
    await asyncio.sleep(0)
    assert ticket.phase is Phase.WAITING
    queue.replica_up("other", CAPACITY)
    await first
    assert (engines["lost"].asked, engines["other"].asked) == (0, 1)
    assert ticket.phase is Phase.BEGUN


@pytest.mark.parametrize("sequences", [1, 2])
async def test_an_engine_cannot_bill_more_than_was_asked_for(sequences):
    queue, exchange, relay = relay_over({"odd": Engine(output_tokens=10**30)}, sequences)
    queue.replica_up("odd", CAPACITY)
    queue.enqueue(exchange.ticket)
    await relay.first()
    assert exchange.ticket.max_output_tokens == 1
    assert exchange.output_tokens == sequences
