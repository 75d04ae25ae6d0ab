"""A client that leaves gives back everything it held, in every phase, and is billed once."""

import asyncio
import json

import pytest

from gateway.engines.http import PROBE_TIMEOUT_S

BODY = {"model": "smollm2-135m", "prompt": [5] * 20, "max_tokens": 100}
streamed_or_whole = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


class Call:
    """A request on a connection of its own, left by closing it."""

    @classmethod
    async def start(cls, gateway, *, stream, key=None):
        self = cls()
        host, _, port = gateway.url.removeprefix("http://").removesuffix("/v1").partition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(BODY | {"stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            f"authorization: Bearer {key or gateway.key}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        return self

    async def leave(self):
        self.writer.close()
        await self.writer.wait_closed()


async def disconnects(gateway, phase):
    return (await gateway.metrics()).get(f'evenhand_disconnects_total{{phase="{phase}"}}', 0)


async def in_flight(gateway):
    read = await gateway.metrics()
    return sum(v for k, v in read.items() if k.startswith("evenhand_replica_inflight"))


async def depth(gateway):
    read = await gateway.metrics()
    return sum(v for k, v in read.items() if k.startswith("evenhand_queue_depth"))


@streamed_or_whole
async def test_while_queued(gateway, stream):
    tenant, key = await gateway.new_tenant("one-at-a-time", concurrency=1)
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 100, 0.05
    runs = await Call.start(gateway, stream=True, key=key)
    await runs.reader.readuntil(b"data: ")
    waits = await Call.start(gateway, stream=stream, key=key)
    await gateway.eventually(lambda: _is(depth, gateway, 1))
    await waits.leave()
    await gateway.eventually(lambda: _is(depth, gateway, 0))
    (row,) = await gateway.usage(tenant)
    assert (row["outcome"], row["prompt_tokens"], row["output_tokens"]) == ("cancelled", 0, 0)
    assert await disconnects(gateway, "queued") == 1
    assert len(gateway.upstream.requests) == 1
    await runs.leave()
    await gateway.eventually(lambda: len(gateway.rows(tenant)) == 2)


@streamed_or_whole
@pytest.mark.parametrize("held", ["before_headers_s", "before_first_s"])
async def test_before_the_first_byte(gateway, stream, held):
    setattr(gateway.upstream.script, held, 30)
    call = await Call.start(gateway, stream=stream)
    await gateway.eventually(lambda: gateway.upstream.running)
    await call.leave()
    await gateway.eventually(lambda: not gateway.upstream.running)
    (row,) = await gateway.usage()
    assert (row["outcome"], row["prompt_tokens"], row["output_tokens"]) == ("cancelled", 20, 0)
    assert await disconnects(gateway, "before_first_byte") == 1
    assert await in_flight(gateway) == 0
    assert len(gateway.upstream.aborted) == 1


@streamed_or_whole
async def test_while_it_answers(gateway, stream):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 100, 0.02
    call = await Call.start(gateway, stream=stream)
    await gateway.eventually(lambda: max(gateway.upstream.emitted.values(), default=0) >= 5)
    await call.leave()
    await gateway.eventually(lambda: not gateway.upstream.running)
    (row,) = await gateway.usage()
    (emitted,) = gateway.upstream.emitted.values()
    assert 5 <= emitted < 100
    assert (row["outcome"], row["prompt_tokens"]) == ("cancelled", 20)
    assert row["output_tokens"] == emitted
    assert await disconnects(gateway, "streaming") == 1
    assert await in_flight(gateway) == 0


async def test_an_abort_that_waits_for_a_long_step_is_waited_for(gateway):
    script = gateway.upstream.script
    script.tokens, script.between_s = 100, 0.05
    script.before_abort_s = PROBE_TIMEOUT_S + 0.3
    call = await Call.start(gateway, stream=True)
    await call.reader.readuntil(b"data: ")
    await call.leave()
    await gateway.eventually(gateway.rows)
    (row,) = gateway.rows()
    assert row["output_tokens"] == max(gateway.upstream.emitted.values()) > 40
    assert not gateway.upstream.running


async def test_the_next_request_of_the_tenant_gets_the_place(gateway):
    tenant, key = await gateway.new_tenant("narrow", concurrency=1)
    gateway.upstream.script.before_first_s = 30
    call = await Call.start(gateway, stream=False, key=key)
    await gateway.eventually(lambda: gateway.upstream.running)
    gateway.upstream.script.before_first_s = 0
    await call.leave()
    async with gateway.client(key).post("/v1/completions", json=BODY) as reply:
        assert reply.status == 200
    await gateway.eventually(lambda: len(gateway.rows(tenant)) == 2)
    assert sorted(row["outcome"] for row in gateway.rows(tenant)) == ["cancelled", "stop"]


async def test_a_hundred_who_leave_at_random_leave_nothing(gateway):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 20, 0.005
    _, key = await gateway.new_tenant("crowd", concurrency=8, max_queued=200, tpm=10**9)

    async def one(index):
        call = await Call.start(gateway, stream=index % 2 == 0, key=key)
        await asyncio.sleep(0.003 * (index % 40))
        await call.leave()

    await asyncio.gather(*(one(index) for index in range(100)))
    await gateway.eventually(lambda: not gateway.upstream.running)
    await gateway.eventually(lambda: _is(in_flight, gateway, 0))
    assert await depth(gateway) == 0
    async with gateway.client(key).post("/v1/completions", json=BODY) as reply:
        assert reply.status == 200


async def _is(read, gateway, value):
    return await read(gateway) == value
