"""Every way a request can end: what its tenant is charged, billed and given back."""

import asyncio
from dataclasses import dataclass
from typing import get_args

import pytest

from fairness import events as e
from fairness.dispatcher import Dispatcher
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig

PROMPT, CACHED = 20, 10
BODY = {"model": "smollm2-135m", "prompt": [5] * PROMPT, "max_tokens": 100, "stream": True}
RPM, TPM = 600, 200_000


@dataclass(frozen=True)
class Ending:
    """What a request came to; `tokens` None: as many as the engine says it emitted.

    `input` is the event that ended it in the fair queue, None where the queue itself did.
    """

    outcome: str
    input: type | None
    prompt: int = PROMPT
    cached: int | None = 0
    tokens: int | None = None
    attempts: int = 1


class Case:
    """One request and the gateway it is sent to, in a task of its own."""

    def __init__(self, gateway):
        self.gateway = gateway
        self.script = gateway.upstream.script
        self.script.cached_tokens = 0
        self.task = None

    def send(self):
        self.task = asyncio.create_task(self._ask())

    async def _ask(self):
        async with self.gateway.client().post("/v1/completions", json=BODY) as reply:
            return await reply.text()

    async def leave(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def end(self):
        return await self.task

    async def until_waiting(self):
        await self.gateway.eventually(lambda: self._is("evenhand_queue_depth"))

    async def until_sent(self):
        await self.gateway.eventually(lambda: self.gateway.upstream.running)

    async def until_begun(self):
        await self.until_sent()
        await asyncio.sleep(0.1)  # its first chunk is on its way

    async def until_tokens(self):
        emitted = self.gateway.upstream.emitted
        await self.gateway.eventually(lambda: max(emitted.values(), default=0) >= 5)

    async def no_replica(self):
        self.script.capacity_status = 500
        await self.gateway.eventually(lambda: self._is("evenhand_replica_up", 0))

    async def _is(self, name, value=1):
        read = await self.gateway.metrics()
        return sum(number for key, number in read.items() if key.startswith(name)) == value


async def waits_and_leaves(case):
    await case.no_replica()
    case.send()
    await case.until_waiting()
    await case.leave()


async def waits_too_long(case):
    await case.no_replica()
    case.send()
    await case.end()


async def waits_and_is_cut(case):
    await case.no_replica()
    case.send()
    await case.until_waiting()
    case.gateway.stop.set()
    await case.end()


async def sent_and_leaves(case):
    case.script.before_first_s = 30
    case.send()
    await case.until_sent()
    await case.leave()


async def sent_and_is_cut(case):
    case.script.before_first_s = 30
    case.send()
    await case.until_sent()
    case.gateway.stop.set()
    await case.end()


async def sent_and_its_replica_is_lost(case):
    """It waits again under its charge, and is served when the replica is back."""
    case.script.before_first_s = 30
    case.send()
    await case.until_sent()
    await case.no_replica()
    case.script.before_first_s = 0
    case.script.capacity_status = 200
    await case.end()


async def sent_and_leaves_while_it_waits_again(case):
    case.script.before_first_s = 30
    case.send()
    await case.until_sent()
    await case.no_replica()
    await case.until_waiting()
    await case.leave()


async def sent_and_never_answered(case):
    case.script.before_first_s = 30
    case.send()
    await case.end()


async def refused_once(case):
    case.script.status = 503
    case.send()
    await case.gateway.eventually(lambda: case.gateway.upstream.requests)
    case.script.status = 200
    await case.end()


async def refused_always(case):
    case.script.status = 500
    case.send()
    await case.end()


async def begun_and_leaves(case):
    case.script.cached_tokens, case.script.between_s = CACHED, 30
    case.send()
    await case.until_begun()
    await case.leave()


async def begun_and_fails(case):
    case.script.cached_tokens, case.script.error_after = CACHED, 0
    case.send()
    await case.end()


async def begun_and_its_replica_is_lost(case):
    case.script.cached_tokens, case.script.between_s = CACHED, 30
    case.send()
    await case.until_begun()
    case.script.capacity_status = 500
    await case.end()


async def begun_and_is_cut(case):
    case.script.cached_tokens, case.script.between_s = CACHED, 30
    case.send()
    await case.until_begun()
    case.gateway.stop.set()
    await case.end()


def streaming(case):
    case.script.cached_tokens, case.script.tokens, case.script.between_s = CACHED, 100, 0.02
    case.send()


async def streams_and_leaves(case):
    streaming(case)
    await case.until_tokens()
    await case.leave()


async def streams_and_fails(case):
    case.script.error_after = 5
    streaming(case)
    await case.end()


async def streams_and_breaks_off(case):
    case.script.break_after = 5
    streaming(case)
    await case.end()


async def streams_and_its_replica_is_lost(case):
    streaming(case)
    await case.until_tokens()
    case.script.capacity_status = 500
    await case.end()


async def streams_and_is_cut(case):
    streaming(case)
    await case.until_tokens()
    case.gateway.stop.set()
    await case.end()


async def streams_and_falls_silent(case):
    case.script.cached_tokens, case.script.tokens = CACHED, 100
    case.script.between_s = 0.05
    case.send()
    await case.until_tokens()
    case.script.between_s = 30
    await case.end()


async def ends(case):
    case.script.cached_tokens = CACHED
    case.send()
    await case.end()


async def ends_and_then_says_what_was_cached(case):
    case.script.cached_said_late = True
    await ends(case)


async def ends_and_never_says_what_was_cached(case):
    case.send()
    case.script.cached_tokens = None
    await case.end()


NOTHING = {"prompt": 0, "cached": 0, "tokens": 0}
HIT = {"cached": CACHED}
ENDINGS = {
    # Before the grant: nothing was charged.
    waits_and_leaves: Ending("cancelled", e.Cancelled, **NOTHING, attempts=0),
    waits_too_long: Ending("expired", None, **NOTHING, attempts=0),
    waits_and_is_cut: Ending("error", e.Cancelled, **NOTHING, attempts=0),
    # The engine may have it: who leaves owes the prompt, whoever else ended it nothing.
    sent_and_leaves: Ending("cancelled", e.Finished, cached=None, tokens=0),
    sent_and_is_cut: Ending("error", e.NotStarted, **NOTHING),
    sent_and_its_replica_is_lost: Ending("stop", e.Finished, tokens=4, attempts=2),
    sent_and_leaves_while_it_waits_again: Ending("cancelled", e.Cancelled, **NOTHING),
    sent_and_never_answered: Ending("timeout", e.NotStarted, **NOTHING, attempts=3),
    refused_once: Ending("stop", e.Finished, tokens=4, attempts=2),
    refused_always: Ending("error", e.NotStarted, **NOTHING, attempts=3),
    # Begun without a token: the same.
    begun_and_leaves: Ending("cancelled", e.Finished, **HIT, tokens=0),
    begun_and_fails: Ending("error", e.NotStarted, **NOTHING),
    begun_and_its_replica_is_lost: Ending("error", e.NotStarted, **NOTHING),
    begun_and_is_cut: Ending("error", e.NotStarted, **NOTHING),
    # With tokens: what was done is owed, whoever ended it.
    streams_and_leaves: Ending("cancelled", e.Finished, **HIT),
    streams_and_fails: Ending("error", e.Finished, **HIT),
    streams_and_breaks_off: Ending("error", e.Finished, **HIT),
    streams_and_its_replica_is_lost: Ending("error", e.Finished, **HIT),
    streams_and_is_cut: Ending("error", e.Finished, **HIT),
    streams_and_falls_silent: Ending("timeout", e.Finished, **HIT),
    ends: Ending("stop", e.Finished, **HIT, tokens=4),
    ends_and_then_says_what_was_cached: Ending("stop", e.Finished, **HIT, tokens=4),
    ends_and_never_says_what_was_cached: Ending("stop", e.Finished, cached=None, tokens=4),
}
SETTINGS = {
    waits_too_long: {"fairness": {"ttl": 0.3}},
    sent_and_never_answered: {"gateway": {"upstream_read_timeout_s": 0.2}},
    streams_and_falls_silent: {"gateway": {"upstream_read_timeout_s": 0.5}},
}
CUT = {"gateway": {"drain_s": 0.1}}


@pytest.mark.parametrize("way", ENDINGS, ids=lambda way: way.__name__)
async def test_what_it_costs(make_gateway, way):
    expected = ENDINGS[way]
    options = CUT if way.__name__.endswith("cut") else SETTINGS.get(way, {})
    async with make_gateway(**options) as gateway:
        case = Case(gateway)
        await way(case)
        await gateway.eventually(gateway.rows)
        (row,) = gateway.rows()
        emitted = max(gateway.upstream.emitted.values(), default=0)
        tokens = emitted if expected.tokens is None else expected.tokens
        assert row["outcome"] == expected.outcome
        assert (row["prompt_tokens"], row["cached_tokens"]) == (expected.prompt, expected.cached)
        assert row["output_tokens"] == tokens
        assert tokens >= 4 or expected.tokens == 0
        assert len(gateway.upstream.requests) == expected.attempts
        await in_the_log(gateway, expected, tokens)
        if not gateway.stop.is_set():
            await everything_is_given_back(gateway, expected.prompt + tokens)


async def in_the_log(gateway, expected, tokens):
    """The prompt was charged once, and what stays charged is what the row says."""
    ended = (e.Cancelled, e.Finished, e.NotStarted)

    def last():
        events = gateway.events()
        ends = [event for event in events if isinstance(event, (*ended, e.Expired))]
        return events if ends else None

    events = await gateway.eventually(last)
    ends = [event for event in events if isinstance(event, ended)]
    assert {type(event) for event in ends} == ({expected.input} if expected.input else set())
    charges = [event.charge_milli for event in events if isinstance(event, e.Granted)]
    assert sum(charges) == (1000 * PROMPT if expected.attempts else 0)
    units = expected.prompt - 0.9 * (expected.cached or 0) + 2 * tokens
    if expected.prompt == 0:
        units = 0
    forgotten = [event.service_milli for event in events if isinstance(event, e.Forgotten)]
    left = sum(account.service_milli for account in accounts(events))
    assert sum(forgotten) + left == 1000 * units


def accounts(events):
    """The tenants that a dispatcher still knows after these events."""
    dispatcher = Dispatcher(PoolConfig(), VtcPolicy())
    for event in events:
        if not isinstance(event, get_args(e.Effect)):
            dispatcher.apply(event)
    return dispatcher.snapshot().tenants


async def everything_is_given_back(gateway, used):
    read = await gateway.metrics()
    for name in ("evenhand_replica_inflight", "evenhand_queue_depth"):
        assert sum(number for key, number in read.items() if key.startswith(name)) == 0
    async with gateway.client().get("/v1/models") as reply:
        assert reply.headers["x-ratelimit-remaining-tokens"] == str(TPM - used)
        assert reply.headers["x-ratelimit-remaining-requests"] == str(RPM - 1)


async def test_tokens_are_charged_while_they_stream(gateway):
    case = Case(gateway)
    streaming(case)
    await gateway.eventually(
        lambda: sum(isinstance(event, e.Emitted) for event in gateway.events()) >= 2
    )
    assert gateway.upstream.running
    await case.leave()
    kinds = [type(event) for event in gateway.events()]
    assert kinds.index(e.Granted) < kinds.index(e.Corrected) < kinds.index(e.Emitted)
