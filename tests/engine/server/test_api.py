"""What the engine's routes answer, over its real socket."""

import asyncio

import pytest

from tests.engine.server.conftest import (
    MODEL,
    OTHER_SALT,
    SALT,
    chat,
    client_for,
    completion,
    echo,
    until,
)

LIVE_USAGE = {"include_usage": True, "continuous_usage_stats": True}


async def test_completion_as_one_body(client):
    status, body = await client.completion(echo("Hello, world"), request_id="req-1")
    assert status == 200
    assert body["id"] == "cmpl-req-1"
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello, world", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == {
        "prompt_tokens": 13,
        "completion_tokens": 13,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_completion_streamed_with_running_usage(client):
    payload = completion(echo("Grüße"), stream=True, stream_options=LIVE_USAGE)
    *chunks, usage_chunk, done = await client.events("/v1/completions", payload)
    assert done == "[DONE]"
    first = chunks[0]
    assert first["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": None,
        "finish_reason": None,
    }
    assert first["usage"]["completion_tokens"] == 0
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Grüße"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "stop"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == len("Grüße".encode()) + 1
    assert usage_chunk["choices"] == []
    assert usage_chunk["usage"]["completion_tokens"] == counts[-1]
    assert len({chunk["id"] for chunk in [*chunks, usage_chunk]}) == 1


async def test_chat_whole_and_streamed_say_the_same(client):
    async with await client.post("/v1/chat/completions", chat("Paris.")) as response:
        body = await response.json()
    assert body["choices"][0]["message"]["content"] == "Paris."
    assert body["id"].startswith("chatcmpl-")
    events = await client.events("/v1/chat/completions", chat("Paris.", stream=True))
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == "Paris."
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1] == "[DONE]"
    assert all("usage" not in event for event in events[:-1])


async def test_token_ids_as_prompt(client, text_model):
    status, body = await client.completion(text_model.encode(echo("ids")))
    assert (status, body["choices"][0]["text"]) == (200, "ids")


async def test_cached_tokens_belong_to_a_namespace(client):
    prompt = "x" * 500
    hits = []
    for salt in (SALT, SALT, OTHER_SALT, OTHER_SALT):
        _, body = await client.completion(prompt, cache_salt=salt, max_tokens=1)
        hits.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert hits == [0, 496, 0, 496]


async def test_cache_off_neither_hits_nor_inserts(client):
    prompt = "y" * 100
    for fields in ({"cache": "off"}, {}, {"cache": "off"}):
        _, body = await client.completion(prompt, max_tokens=1, **fields)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_owner_and_weight_reach_the_core_and_a_namespace_owns_itself(
    engine, client, monkeypatch
):
    seen, add = [], engine.core.add

    def noted(*requests):
        seen.extend(requests)
        add(*requests)

    monkeypatch.setattr(engine.core, "add", noted)
    await client.completion("x", max_tokens=1)
    await client.completion("x", max_tokens=1, cache_owner="t1", cache_weight=7)
    assert [(each.owner, each.weight) for each in seen] == [(SALT, 1), ("t1", 7)]


async def test_max_tokens_defaults_to_the_context_left(client):
    _, body = await client.completion("z" * 500)
    assert body["usage"]["completion_tokens"] == 12
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_larger_max_tokens_ends_with_length(client):
    _, body = await client.completion("z" * 500, max_tokens=100_000)
    assert body["usage"]["completion_tokens"] == 12
    assert body["choices"][0]["finish_reason"] == "length"


async def test_stop_token_ids_and_ignore_eos(client, text_model):
    comma = text_model.encode(",")[0]
    _, body = await client.completion(echo("one, two"), stop_token_ids=[comma])
    assert body["choices"][0]["text"] == "one"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("one,")
    _, body = await client.completion(echo("ab"), ignore_eos=True, max_tokens=5)
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_across_tokens_never_leaks(engine, client, stream):
    payload = completion(
        echo("before STOP after"), stop=["STOP"], stream=stream, request_id="stopped"
    )
    if stream:
        events = await client.events("/v1/completions", payload)
        text = "".join(event["choices"][0]["text"] for event in events[:-1])
        reason = events[-2]["choices"][0]["finish_reason"]
    else:
        async with await client.post("/v1/completions", payload) as response:
            choice = (await response.json())["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
    assert (text, reason) == ("before ", "stop")
    steps = [batch for batch in engine.runner.batches if "stopped" in batch]
    assert len(steps) == len("before STOP")  # the request ended before its next step


async def test_an_unfinished_stop_string_is_text_in_the_end(client):
    _, body = await client.completion(echo("the end ST"), stop=["STOP"])
    assert body["choices"][0]["text"] == "the end ST"


async def test_no_event_splits_a_character(client):
    text = "é漢字🙂" * 3
    events = await client.events("/v1/completions", completion(echo(text), stream=True))
    pieces = [event["choices"][0]["text"] for event in events[:-1]]
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


async def test_tokenize_text_and_messages(client, text_model):
    async with await client.post("/tokenize", {"model": MODEL, "prompt": "abc"}) as response:
        body = await response.json()
    assert body == {"tokens": text_model.encode("abc"), "count": 3, "max_model_len": 512}
    messages = [{"role": "user", "content": "hi"}]
    async with await client.post("/tokenize", {"model": MODEL, "messages": messages}) as response:
        assert (await response.json())["count"] == 4


async def test_models_and_capacity(client):
    models = await client.get("/v1/models")
    assert [card["id"] for card in models["data"]] == [MODEL]
    capacity = await client.get("/capacity")
    assert capacity.pop("sequence") >= 0
    assert capacity == {
        "model": MODEL,
        "max_model_len": 512,
        "slots": 16,
        "running": 0,
        "waiting": 0,
        "block_size": 16,
        "kv_tokens": {"total": (64 - 2) * 16, "free": 1024, "cached": 0, "held": 0, "pinned": 0},
    }


async def test_capacity_is_of_whole_tokens_where_each_takes_a_slot_in_every_page_group(launch):
    async with client_for(launch(windows=(None, None, 32))) as client:
        tokens = (await client.get("/capacity"))["kv_tokens"]
    assert (tokens["total"], tokens["free"]) == ((64 - 2) * 16 // 3, 64 * 16 // 3)


async def test_the_header_names_a_request_and_comes_back(client):
    payload = completion(echo("x"))
    async with await client.post(
        "/v1/completions", payload, headers={"x-request-id": "from-header"}
    ) as response:
        assert response.headers["x-request-id"] == "from-header"
        assert (await response.json())["id"] == "cmpl-from-header"


async def test_a_request_id_in_use_is_refused_and_does_no_harm(engine, client):
    engine.runner.hold()
    first = asyncio.create_task(client.completion(echo("mine"), request_id="same"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    second = asyncio.create_task(client.completion(echo("theirs"), request_id="same"))
    third = asyncio.create_task(client.completion(echo("theirs"), request_id="same"))
    await until(lambda: len(engine.engine.service.loop._commands) == 2)
    third.cancel()  # its disconnect must not abort the request that owns the id
    await asyncio.sleep(0.05)
    engine.runner.let_go()
    status, body = await second
    assert (status, body["error"]["code"]) == (409, "duplicate_request_id")
    status, body = await first
    assert (status, body["choices"][0]["text"]) == (200, "mine")


async def test_what_can_never_fit_is_refused_and_names_the_field(launch):
    small = launch(num_blocks=8, max_model_len=2048)  # the pool holds 128 tokens
    async with client_for(small) as client:
        status, body = await client.completion("x" * 128)
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        assert body["error"]["param"] == "prompt"
        async with await client.post("/v1/chat/completions", chat("y" * 200)) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"] == "messages"
        status, body = await client.completion("x" * 127)
        assert status == 200
        assert body["usage"]["completion_tokens"] == 1
        assert body["choices"][0]["finish_reason"] == "length"


async def test_a_full_queue_is_a_503_with_retry_after(launch):
    busy = launch(max_num_seqs=1, max_waiting_requests=1)
    async with client_for(busy) as client:
        busy.runner.hold()
        running = asyncio.create_task(client.completion(echo("a")))
        await asyncio.to_thread(busy.runner.entered.wait, 20)
        waiting = asyncio.create_task(client.completion(echo("b")))
        await until(lambda: len(busy.engine.service.loop._commands) == 1)
        response = await client.post("/v1/completions", completion(echo("c")))  # no step is over
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert (await response.json())["error"]["code"] == "queue_full"
        busy.runner.let_go()
        assert [status for status, _ in (await running, await waiting)] == [200, 200]


async def test_abort_by_id_is_idempotent(engine, client):
    engine.runner.hold()
    victim = asyncio.create_task(client.completion("endless", request_id="victim"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    engine.runner.let_go()
    answers = []
    for _ in range(2):
        async with await client.post("/abort/victim", {}) as response:
            answers.append((response.status, (await response.json())["aborted"]))
    assert answers == [(200, True), (200, False)]
    assert (await client.get("/capacity"))["kv_tokens"]["held"] == 0
    status, body = await victim
    assert (status, body["error"]["code"]) == (409, "request_aborted")


async def test_an_abort_mid_stream_is_an_error_event_without_done(engine, client):
    engine.runner.hold()
    engine.runner.permit(2)
    async with await client.post(
        "/v1/completions", completion("endless", stream=True, request_id="cut")
    ) as response:
        await response.content.readuntil(b"\n\n")
        abort = asyncio.create_task(client.post("/abort/cut", {}))
        await until(lambda: engine.engine.service.loop._commands)
        engine.runner.let_go()
        (await abort).release()
        rest = await response.read()
    assert b'"code":"request_aborted"' in rest
    assert b"[DONE]" not in rest
