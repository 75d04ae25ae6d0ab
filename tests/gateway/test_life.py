"""Live changes, readiness, and the drain."""

import asyncio
import json
from datetime import UTC, datetime

import aiohttp

from tenancy import tenants
from tenancy.entities import TenantStatus

BODY = {"model": "smollm2-135m", "prompt": [5] * 10, "max_tokens": 50}


async def status(client, **fields):
    async with client.post("/v1/completions", json=BODY | fields) as reply:
        return reply.status


async def test_a_revoked_key_is_refused_soon(gateway):
    client = gateway.client()
    assert await status(client) == 200
    key_id = gateway.key.split("_")[2]
    async with gateway.database.transaction() as repos:
        await repos.keys.set_revoked(key_id, datetime.now(UTC))
    await gateway.eventually(lambda: _is(status(client), 401))


class SlowBody:
    """A request whose head was sent and whose body is held back."""

    @classmethod
    async def start(cls, gateway):
        self = cls()
        host, _, port = gateway.url.removeprefix("http://").removesuffix("/v1").partition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port))
        self.body = json.dumps(BODY).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(self.body)}\r\n"
            f"authorization: Bearer {gateway.key}\r\n\r\n"
        )
        self.writer.write(head.encode() + self.body[:1])
        # It was let in: the store was asked for its key, or answers other requests by now.
        await asyncio.sleep(0.1)
        return self

    async def status(self):
        self.writer.write(self.body[1:])
        line = await self.reader.readline()
        self.writer.close()
        return int(line.split()[1])


async def test_a_slow_body_outlives_no_revocation(gateway):
    client = gateway.client()
    assert await status(client) == 200
    slow = await SlowBody.start(gateway)
    async with gateway.database.transaction() as repos:
        await repos.keys.set_revoked(gateway.key.split("_")[2], datetime.now(UTC))
    await gateway.eventually(lambda: _is(status(client), 401))
    assert await slow.status() == 401


async def test_a_slow_body_that_ends_in_a_drain_is_refused(gateway):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 30, 0.05
    slow = await SlowBody.start(gateway)
    client = gateway.client()
    async with client.post("/v1/completions", json=BODY | {"stream": True}) as streamed:
        await streamed.content.readuntil(b"\n\n")
        gateway.stop.set()
        await gateway.eventually(lambda: _is(status(gateway.client()), 503))
        assert await slow.status() == 503


async def test_a_suspended_tenant_is_told_so(gateway):
    client = gateway.client()
    async with gateway.database.transaction() as repos:
        await tenants.set_status(repos, "acme", TenantStatus.SUSPENDED)
    await gateway.eventually(lambda: _is(status(client), 403))
    async with gateway.client().get("/v1/models") as reply:
        assert (await reply.json())["error"]["code"] == "tenant_suspended"
    async with gateway.database.transaction() as repos:
        await tenants.set_status(repos, "acme", TenantStatus.ACTIVE)
    await gateway.eventually(lambda: _is(status(client), 200))


async def test_a_key_made_beside_the_gateway_works_at_once(gateway):
    _, key = await gateway.new_tenant("fresh")
    assert await status(gateway.client(key)) == 200


async def test_a_new_limit_holds_soon(gateway):
    client = gateway.client()
    async with gateway.database.transaction() as repos:
        await tenants.change_limits(repos, "acme", {"max_output": 10})
    await gateway.eventually(lambda: _is(status(client, max_tokens=50), 400))
    assert await status(client, max_tokens=10) == 200


async def test_readiness_and_engine_metrics(gateway):
    async with aiohttp.ClientSession(gateway.admin_url) as client:
        async with client.get("/readyz") as reply:
            assert (reply.status, await reply.json()) == (200, {"ready": True, "reasons": []})
        async with client.get("/metrics/engine") as reply:
            assert "evenhand_engine_requests_running 0" in await reply.text()
        async with client.get("/v1/models") as reply:
            assert reply.status == 404
            assert (await reply.json())["error"]["code"] == "unknown_url"


async def test_a_drain_finishes_streams_and_refuses_new_requests(gateway):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 30, 0.02
    client = gateway.client()
    async with client.post("/v1/completions", json=BODY | {"stream": True}) as streamed:
        await streamed.content.readuntil(b"\n\n")
        gateway.stop.set()
        await gateway.eventually(lambda: _is(status(gateway.client()), 503))
        rest = (await streamed.content.read()).decode()
    assert rest.rstrip().endswith("[DONE]")
    await gateway.task
    (row,) = gateway.rows()
    assert (row["outcome"], row["output_tokens"]) == ("stop", 30)
    assert not gateway.admin_socket.exists()


async def test_the_drain_deadline_cuts_what_is_left(make_gateway):
    async with make_gateway(gateway={"drain_s": 0.2}) as gateway:
        gateway.upstream.script.tokens, gateway.upstream.script.between_s = 50, 0.5
        client = gateway.client()
        async with client.post("/v1/completions", json=BODY | {"stream": True}) as streamed:
            await streamed.content.readuntil(b"\n\n")
            gateway.stop.set()
            rest = (await streamed.content.read()).decode()
        assert '"server_shutting_down"' in rest
        assert "[DONE]" not in rest
        await asyncio.wait_for(gateway.task, 10)
        (row,) = gateway.rows()
        assert row["outcome"] == "error"
        assert not gateway.upstream.running


async def _is(question, value):
    return await question == value
