"""Pinning and erasing what is cached, by namespace."""

import asyncio

import pytest

from tests.engine.server.conftest import MODEL, OTHER_SALT, SALT, client_for, until

PROMPT = "p" * 100


async def call(client, path, **payload):
    async with await client.post(path, payload) as response:
        return response.status, await response.json()


def pin(client, prompt=PROMPT, *, pinned=True, salt=SALT, **fields):
    payload = {"model": MODEL, "cache_salt": salt, "prompt": prompt, "pinned": pinned} | fields
    return call(client, "/prefix/pin", **payload)


def erase(client, salt=SALT):
    return call(client, "/cache/erase", cache_salt=salt)


async def cached(client, prompt=PROMPT, **fields):
    _, body = await client.completion(prompt, max_tokens=1, **fields)
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


async def flood(client):
    """Six times the pool, in prompts that nobody sends again."""
    for i in range(8):
        await client.completion(f"{i}" * 500, max_tokens=1)


async def test_a_pinned_prefix_outlives_a_flood(launch):
    engine = launch(num_blocks=40)
    async with client_for(engine) as client:
        assert await pin(client) == (200, {"pinned_tokens": 0, "prompt_tokens": 100})
        assert await cached(client) == 0
        assert await pin(client) == (200, {"pinned_tokens": 96, "prompt_tokens": 100})
        assert (await client.get("/capacity"))["kv_tokens"]["pinned"] == 96
        assert await client.metric("evenhand_engine_pinned_blocks") == 6
        await flood(client)
        assert await cached(client) == 96
        assert await client.metric("evenhand_engine_evicted_blocks_total") > 0
        unpinned = await pin(client, pinned=False)
        assert unpinned == (200, {"pinned_tokens": 0, "prompt_tokens": 100})
        await flood(client)
        assert await cached(client) == 0


async def test_pins_are_a_namespaces_own(client, text_model):
    await cached(client)
    assert (await pin(client, salt=OTHER_SALT))[1]["pinned_tokens"] == 0
    assert (await pin(client, text_model.encode(PROMPT)))[1]["pinned_tokens"] == 96
    messages = [{"role": "user", "content": "m" * 100}]
    _, body = await call(
        client, "/prefix/pin", model=MODEL, cache_salt=SALT, messages=messages, pinned=True
    )
    assert body == {"pinned_tokens": 0, "prompt_tokens": 102}


async def test_what_no_sequence_can_hold_is_not_looked_for(client, text_model):
    for prompt in ("x" * 512, text_model.encode("x" * 512)):
        status, body = await pin(client, prompt)
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert body["error"]["param"] == "prompt"
    assert (await pin(client, "x" * 511))[0] == 200


async def test_too_much_cannot_be_pinned(launch):
    engine = launch(num_blocks=40)
    async with client_for(engine) as client:
        await cached(client, "x" * 400)
        status, body = await pin(client, "x" * 400)
        assert (status, body["error"]["code"]) == (409, "pin_limit_reached")
        assert (await client.get("/capacity"))["kv_tokens"]["pinned"] == 0


async def test_a8_erasing_waits_for_no_one_and_touches_no_other_namespace(engine, client):
    await cached(client)
    await cached(client, cache_salt=OTHER_SALT)
    engine.runner.hold()
    running = asyncio.create_task(client.completion(PROMPT))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    refused = asyncio.create_task(erase(client))
    await until(lambda: engine.engine.service.loop._commands)
    engine.runner.permit()
    status, body = await refused
    assert (status, body["error"]["code"]) == (409, "cache_in_use")
    running.cancel()
    engine.runner.let_go()
    await until(lambda: engine.engine.service.loop.snapshot.stats.running == 0)
    status, body = await erase(client)
    assert status == 200
    assert body["erased_blocks"] >= 6
    assert await erase(client) == (200, {"erased_blocks": 0})
    assert await cached(client) == 0
    assert await cached(client, cache_salt=OTHER_SALT) == 96


@pytest.mark.parametrize(
    ("path", "payload", "param"),
    [
        ("/prefix/pin", {"cache_salt": SALT, "prompt": "x", "pinned": True}, "model"),
        ("/prefix/pin", {"model": MODEL, "prompt": "x", "pinned": True}, "cache_salt"),
        ("/prefix/pin", {"model": MODEL, "cache_salt": SALT, "pinned": True}, "prompt"),
        ("/prefix/pin", {"model": MODEL, "cache_salt": SALT, "prompt": "x"}, "pinned"),
        (
            "/prefix/pin",
            {"model": MODEL, "cache_salt": SALT, "prompt": "x", "pinned": True, "n": 1},
            "n",
        ),
        (
            "/prefix/pin",
            {"model": MODEL, "cache_salt": SALT, "prompt": "", "pinned": True},
            "prompt",
        ),
        ("/cache/erase", {}, "cache_salt"),
        ("/cache/erase", {"cache_salt": SALT, "model": MODEL}, "model"),
    ],
)
async def test_wrong_bodies_name_the_field(client, path, payload, param):
    status, body = await call(client, path, **payload)
    assert (status, body["error"]["param"]) == (400, param)


async def test_another_models_prefix_is_not_ours(client):
    status, body = await pin(client, model="other")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
