"""Limits over HTTP: a refusal names tenant, limit and level, and takes nothing."""

import asyncio

import aiohttp

BODY = {"model": "smollm2-135m", "prompt": [5] * 10, "max_tokens": 4}


async def ask(client, **fields):
    async with client.post("/v1/completions", json=BODY | fields) as reply:
        return reply.status, reply.headers, await reply.json()


async def test_requests_per_minute(gateway):
    tenant, key = await gateway.new_tenant("two-a-minute", rpm=2)
    client = gateway.client(key)
    assert [(await ask(client))[0] for _ in range(2)] == [200, 200]
    status, headers, body = await ask(client)
    assert status == 429
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert "tenant two-a-minute" in body["error"]["message"]
    assert "rpm" in body["error"]["message"]
    assert 1 <= int(headers["retry-after"]) <= 61
    assert int(headers["retry-after-ms"]) <= 61_000
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert len(await gateway.usage(tenant)) == 2, "a refusal leaves no row"


async def test_a_refused_dimension_takes_nothing_of_the_others(gateway):
    _, key = await gateway.new_tenant("few-tokens", tpm=20, rpm=100)
    client = gateway.client(key)
    status, headers, _ = await ask(client, max_tokens=11)
    assert status == 429
    assert headers["x-should-retry"] == "false", "it can never fit"
    assert "retry-after" not in headers
    assert headers["x-ratelimit-remaining-requests"] == "100"
    assert headers["x-ratelimit-remaining-tokens"] == "20"
    assert (await ask(client))[0] == 200


async def test_tokens_are_settled_to_what_was_used(gateway):
    _, key = await gateway.new_tenant("settled", tpm=1_000)
    client = gateway.client(key)
    gateway.upstream.script.tokens = 2
    assert (await ask(client, max_tokens=500))[0] == 200
    async with client.get("/v1/models") as reply:
        assert reply.headers["x-ratelimit-remaining-tokens"] == "988"


async def test_the_queue_is_bounded_per_tenant(gateway):
    _, key = await gateway.new_tenant("short-queue", concurrency=1, max_queued=2)
    client = gateway.client(key)
    gateway.upstream.script.before_first_s = 30
    running = [asyncio.create_task(ask(client)) for _ in range(3)]
    await gateway.eventually(lambda: gateway.upstream.running)
    await asyncio.sleep(0.1)
    status, headers, body = await ask(client)
    assert (status, body["error"]["code"]) == (429, "queue_full")
    assert "max_queued" in body["error"]["message"]
    assert int(headers["retry-after"]) >= 1
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_what_waits_too_long_is_told_so(make_gateway):
    async with make_gateway(fairness={"ttl": 0.3}) as gateway:
        tenant, key = await gateway.new_tenant("patient", concurrency=1)
        client = gateway.client(key)
        gateway.upstream.script.before_first_s = 1.5
        first = asyncio.create_task(ask(client))
        await gateway.eventually(lambda: gateway.upstream.running)
        status, headers, body = await ask(client)
        assert (status, body["error"]["code"]) == (429, "queue_timeout")
        assert int(headers["retry-after"]) >= 1
        assert (await first)[0] == 200
        outcomes = sorted(row["outcome"] for row in await gateway.usage(tenant))
        assert outcomes == ["expired", "stop"]


async def test_what_is_left_comes_over_the_admin_socket(gateway):
    tenant, key = await gateway.new_tenant("asked-about", rpm=5)
    await ask(gateway.client(key))
    assert gateway.admin_socket.stat().st_mode & 0o777 == 0o600
    connector = aiohttp.UnixConnector(str(gateway.admin_socket))
    async with aiohttp.ClientSession(connector=connector) as client:
        async with client.get(f"http://x/left?tenant={tenant.id}") as reply:
            left = await reply.json()
        async with client.get("http://x/left?tenant=nobody") as reply:
            assert reply.status == 400
        async with client.get("http://x/left?tenant=00000000-0000-0000-0000-000000000000") as reply:
            assert await reply.json() is None
    assert left["rpm"] == 4
    assert left["tpm"] == 200_000 - 14
    assert left["uncached_tpm"] is None
    assert (left["queued"], left["running"]) == (0, 0)


async def test_a_request_that_waited_too_long_is_told_its_limits(make_gateway):
    async with make_gateway(fairness={"ttl": 0.3}) as gateway:
        _, key = await gateway.new_tenant("patient", concurrency=1)
        client = gateway.client(key)
        gateway.upstream.script.before_first_s = 2
        runs = asyncio.create_task(ask(client))
        await gateway.eventually(lambda: gateway.upstream.running)
        status, headers, body = await ask(client)
        assert (status, body["error"]["code"]) == (429, "queue_timeout")
        assert headers["retry-after"]
        assert headers["x-ratelimit-limit-requests"] == "600"
        await runs
