"""A replica that fails, is slow, or goes away: what its requests see, and what they are billed."""

import asyncio

import aiohttp
import pytest

from gateway.routes.dialects import CompletionDialect

BODY = {"model": "smollm2-135m", "prompt": [5] * 10, "max_tokens": 50}
SECRET = "secret engine words"


async def ask(client, **fields):
    async with client.post("/v1/completions", json=BODY | fields) as reply:
        text = await reply.text()
        return reply.status, text


async def test_a_refusing_engine_is_retried_then_reported(gateway):
    gateway.upstream.script.status = 500
    status, text = await ask(gateway.client())
    assert status == 502
    assert '"upstream_error"' in text
    assert len(gateway.upstream.requests) == 3
    assert len({sent["request_id"] for sent in gateway.upstream.requests}) == 3
    (row,) = await gateway.usage()
    assert (row["outcome"], row["output_tokens"]) == ("error", 0)
    await nothing_is_owed(gateway, row)


@pytest.mark.parametrize("way", ["break_after", "error_after"])
async def test_an_engine_that_fails_before_its_first_token_costs_nothing(gateway, way):
    gateway.upstream.script.cached_tokens = 6
    setattr(gateway.upstream.script, way, 0)
    status, _ = await ask(gateway.client())
    assert status == 502
    (row,) = await gateway.usage()
    assert row["outcome"] == "error"
    await nothing_is_owed(gateway, row)


async def test_a_replica_lost_before_its_first_token_costs_nothing(gateway):
    gateway.upstream.script.between_s = 30
    call = asyncio.create_task(ask(gateway.client()))
    await gateway.eventually(lambda: gateway.upstream.running)
    await asyncio.sleep(0.05)
    gateway.upstream.script.capacity_status = 500
    assert (await call)[0] == 502
    (row,) = await gateway.usage()
    await nothing_is_owed(gateway, row)


async def nothing_is_owed(gateway, row):
    assert (row["prompt_tokens"], row["cached_tokens"]) == (0, 0)
    read = await gateway.metrics()
    assert [v for k, v in read.items() if k.startswith("evenhand_service_units_total")] == [0]
    async with gateway.client().get("/v1/models") as reply:
        assert reply.headers["x-ratelimit-remaining-tokens"] == "200000"


@pytest.mark.parametrize("cached", ["7", -1, 2.5, True])
async def test_a_count_that_is_none_is_a_broken_stream(gateway, cached):
    gateway.upstream.script.cached_tokens = cached
    assert (await ask(gateway.client()))[0] == 502
    gateway.upstream.script.cached_tokens = 0
    (row,) = await gateway.usage()
    await nothing_is_owed(gateway, row)


async def test_more_cached_than_the_prompt_has_counts_as_all_of_it(gateway):
    gateway.upstream.script.cached_tokens = 99
    assert (await ask(gateway.client()))[0] == 200
    (row,) = await gateway.usage()
    assert (row["prompt_tokens"], row["cached_tokens"]) == (10, 10)


async def test_a_fault_of_our_own_hangs_up_on_the_engine(gateway, monkeypatch):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 100, 0.05

    def broken(*_):
        raise RuntimeError

    monkeypatch.setattr(CompletionDialect, "deltas", broken)
    client = gateway.client()
    with pytest.raises(aiohttp.ClientError):
        await ask(client, stream=True)
    await gateway.eventually(lambda: not gateway.upstream.running)
    assert max(gateway.upstream.emitted.values(), default=0) < 50
    (row,) = await gateway.usage()
    assert row["outcome"] == "error"


async def test_an_engine_that_recovers_in_time_serves_the_request(gateway):
    gateway.upstream.script.status = 503
    call = asyncio.create_task(ask(gateway.client()))
    await gateway.eventually(lambda: gateway.upstream.requests)
    gateway.upstream.script.status = 200
    assert (await call)[0] == 200
    (row,) = await gateway.usage()
    assert row["outcome"] == "stop"


@pytest.mark.parametrize("way", ["break_after", "error_after"])
async def test_a_begun_stream_ends_with_an_error_event(gateway, way):
    gateway.upstream.script.tokens = 9
    gateway.upstream.script.between_s = 0.01
    setattr(gateway.upstream.script, way, 5)
    status, text = await ask(gateway.client(), stream=True)
    assert status == 200
    *_, last = [line for line in text.split("\n\n") if line]
    assert '"error"' in last
    assert '"upstream_error"' in last
    assert "[DONE]" not in text
    assert SECRET not in text
    (row,) = await gateway.usage()
    assert (row["outcome"], row["output_tokens"]) == ("error", 5)


async def test_a_begun_whole_answer_fails_with_its_own_status(gateway):
    gateway.upstream.script.tokens = 9
    gateway.upstream.script.error_after = 5
    status, text = await ask(gateway.client())
    assert status == 502
    assert SECRET not in text


async def test_silence_is_a_timeout(make_gateway):
    async with make_gateway(gateway={"upstream_read_timeout_s": 0.3}) as gateway:
        gateway.upstream.script.tokens, gateway.upstream.script.between_s = 9, 20
        status, text = await ask(gateway.client())
        assert status == 504
        assert '"upstream_timeout"' in text
        (row,) = await gateway.usage()
        assert row["outcome"] == "timeout"


async def test_unstarted_requests_of_a_lost_replica_wait_for_it(gateway):
    gateway.upstream.script.before_first_s = 30
    call = asyncio.create_task(ask(gateway.client()))
    await gateway.eventually(lambda: gateway.upstream.running)
    gateway.upstream.script.capacity_status = 500
    await gateway.eventually(lambda: not gateway.upstream.running, "the lost call is dropped")
    gateway.upstream.script.before_first_s = 0
    gateway.upstream.script.capacity_status = 200
    assert (await call)[0] == 200
    assert len(gateway.upstream.requests) == 2
    (row,) = await gateway.usage()
    assert (row["outcome"], row["prompt_tokens"]) == ("stop", 10)


async def test_begun_streams_of_a_lost_replica_end_with_an_error_event(gateway):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 50, 0.05
    call = asyncio.create_task(ask(gateway.client(), stream=True))
    await gateway.eventually(lambda: max(gateway.upstream.emitted.values(), default=0) >= 2)
    gateway.upstream.script.capacity_status = 500
    status, text = await call
    assert status == 200
    assert '"upstream_error"' in text
    assert "[DONE]" not in text
    (row,) = await gateway.usage()
    assert row["outcome"] == "error"
    assert row["output_tokens"] == text.count('"text":" ')


async def test_without_a_replica_a_request_waits_then_gets_503(make_gateway):
    async with make_gateway(fairness={"ttl": 0.3}) as gateway:
        gateway.upstream.script.capacity_status = 500
        await gateway.eventually(lambda: _down(gateway))
        async with gateway.client().get("http" + gateway.admin_url[4:] + "/readyz") as reply:
            assert reply.status == 503
            assert "no replica" in " ".join((await reply.json())["reasons"])
        status, text = await ask(gateway.client())
        assert status == 503
        assert '"no_healthy_upstream"' in text


async def _down(gateway):
    read = await gateway.metrics()
    return all(v == 0 for k, v in read.items() if k.startswith("evenhand_replica_up"))
