"""Several answers to one prompt: shared, repeatable, ended and freed together."""

import asyncio
from collections import defaultdict

import pytest

from engine.runner.fake import seeded
from tests.engine.server.conftest import chat, client_for, completion, echo, until

USAGE = {"include_usage": True}


def is_idle(engine):
    stats = engine.engine.service.loop.snapshot.stats
    return (stats.running, stats.waiting, stats.held_blocks) == (0, 0, 0)


@pytest.fixture
def seeded_engine(launch):
    """Tokens depend on the seed; all are bytes of ASCII text, so that nothing ends early."""
    choose = seeded(95)
    return launch(choose=lambda *state: 33 + choose(*state) % 60)


async def test_d1_samples_differ_repeat_and_equal_their_solo_runs(seeded_engine):
    prompt = "p" * 100
    async with client_for(seeded_engine) as client:
        fields = {"n": 4, "seed": 7, "max_tokens": 12, "temperature": 1}
        _, body = await client.completion(prompt, **fields)
        _, again = await client.completion(prompt, **fields)
        solo = [
            await client.completion(prompt, seed=7 + i, max_tokens=12, temperature=1)
            for i in range(4)
        ]
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert [choice["text"] for choice in again["choices"]] == texts
    assert [each["choices"][0]["text"] for _, each in solo] == texts
    assert body["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": 48,
        "total_tokens": 148,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_d1_the_prompt_is_computed_and_held_once(seeded_engine):
    engine = seeded_engine
    async with client_for(engine) as client:
        engine.runner.hold()
        fields = {"n": 4, "max_tokens": 4, "temperature": 1}
        running = asyncio.create_task(client.completion("p" * 320, **fields))
        engine.runner.permit(3)
        await until(lambda: len(engine.runner.batches) == 4)
        stats = engine.core.stats()
        assert stats.running == 4
        assert stats.held_blocks <= 20 + 4 * 2  # 20 blocks of prompt, shared
        engine.runner.let_go()
        status, body = await running
        assert status == 200
        assert await client.metric("evenhand_engine_prompt_tokens_total") == 320
        assert await client.metric("evenhand_engine_generation_tokens_total") == 16
        assert await client.metric("evenhand_engine_time_to_first_token_seconds_count") == 1
        assert await client.metric("evenhand_engine_inter_token_latency_seconds_count") == 12
    assert engine.core.stats().computed_tokens < 2 * 320
    assert body["usage"]["completion_tokens"] == 16


async def test_seeds_wrap_around(seeded_engine):
    async with client_for(seeded_engine) as client:
        fields = {"max_tokens": 8, "temperature": 1}
        _, body = await client.completion("p", n=2, seed=-1, **fields)
        _, zero = await client.completion("p", seed=0, **fields)
    assert body["choices"][1]["text"] == zero["choices"][0]["text"]


async def test_d2_more_samples_than_places_all_end(launch):
    engine = launch(max_num_seqs=2)
    async with client_for(engine) as client:
        status, body = await client.completion(echo("drained"), n=8)
        assert status == 200
        assert [c["text"] for c in body["choices"]] == ["drained"] * 8
        assert [c["finish_reason"] for c in body["choices"]] == ["stop"] * 8
        assert body["usage"]["completion_tokens"] == 8 * (len("drained") + 1)
        assert is_idle(engine)


@pytest.mark.parametrize("way", ["abort", "disconnect"])
@pytest.mark.parametrize("stream", [False, True])
async def test_d3_one_end_frees_every_sample(launch, way, stream):
    engine = launch(max_num_seqs=3)  # some run and some wait
    async with client_for(engine) as client:
        engine.runner.hold()
        payload = completion("endless", n=5, stream=stream, request_id="parent")
        request = asyncio.create_task(client.post("/v1/completions", payload))
        engine.runner.permit(3)
        await until(lambda: len(engine.runner.batches) == 4)
        commands = engine.engine.service.loop._commands
        if way == "abort":
            aborted = asyncio.create_task(client.post("/abort/parent", {}))
        elif stream:
            (await request).close()
        else:
            request.cancel()
        await until(lambda: commands)
        engine.runner.let_go()
        await until(lambda: is_idle(engine))
        assert len(engine.runner.batches) == 4  # the step that was under way was the last
        if way == "abort":
            assert (await (await aborted).json())["aborted"]
            response = await request
            body = await response.read()
            assert b"request_aborted" in body
        assert (await client.completion(echo("next"), request_id="parent"))[0] == 200


async def test_samples_of_an_id_are_one_request(engine, client):
    engine.runner.hold()
    first = asyncio.create_task(client.completion("endless", n=2, request_id="twice"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    second = asyncio.create_task(client.completion("x", n=3, request_id="twice"))
    await until(lambda: engine.engine.service.loop._commands)
    engine.runner.permit()
    status, body = await second
    assert (status, body["error"]["code"]) == (409, "duplicate_request_id")
    await until(lambda: engine.core.stats().running == 2)
    first.cancel()
    engine.runner.let_go()
    await until(lambda: is_idle(engine))


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_e1_a_stream_of_choices_is_in_order(client, path):
    text = "one two"
    body = completion(echo(text)) if path == "/v1/completions" else chat(text)
    *events, usage, done = await client.events(
        path, body | {"n": 3, "stream": True, "stream_options": USAGE}
    )
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3 * (len(text) + 1)
    said, reasons = defaultdict(str), defaultdict(list)
    for event in events:
        assert event["usage"] is None
        (choice,) = event["choices"]
        piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        assert not (piece and reasons[choice["index"]])  # nothing follows an end
        said[choice["index"]] += piece
        if choice["finish_reason"] is not None:
            reasons[choice["index"]].append(choice["finish_reason"])
    assert said == dict.fromkeys(range(3), text)
    assert list(reasons.values()) == [["stop"]] * 3
    if path == "/v1/chat/completions":
        openings = [e["choices"][0] for e in events if "role" in e["choices"][0]["delta"]]
        assert [choice["index"] for choice in openings] == [0, 1, 2]


async def test_a_stop_string_ends_its_own_choice_only(launch):
    engine = launch(choose=lambda _, __, params: 65 + params.seed)
    async with client_for(engine) as client:
        letters = [engine.engine.service.text.token_bytes(65 + i).decode() for i in range(2)]
        fields = {"n": 2, "seed": 0, "max_tokens": 9, "stop": letters[0] * 4}
        _, body = await client.completion("p", **fields)
    first, second = body["choices"]
    assert (first["text"], first["finish_reason"]) == ("", "stop")
    assert (second["text"], second["finish_reason"]) == (letters[1] * 9, "length")
    assert body["usage"]["completion_tokens"] == 4 + 9


async def test_a_fault_of_one_sample_is_its_requests_alone(launch):
    engine = launch(max_num_seqs=8)
    async with client_for(engine) as client:
        engine.runner.unsampled = {"doomed 1"}
        engine.runner.hold()
        both = [
            asyncio.create_task(client.completion("endless", n=3, request_id="doomed")),
            asyncio.create_task(client.completion(echo("fine"), n=2)),
        ]
        await asyncio.to_thread(engine.runner.entered.wait, 20)
        engine.runner.let_go()
        (doomed, error), (fine, body) = await asyncio.gather(*both)
        assert (doomed, error["error"]["type"]) == (500, "server_error")
        assert (fine, [c["text"] for c in body["choices"]]) == (200, ["fine"] * 2)
        assert await client.metric('evenhand_engine_request_errors_total{hook="sample"}') == 1
        await until(lambda: is_idle(engine))
