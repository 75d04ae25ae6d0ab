"""Several answers to one prompt: their order on the wire, their limits and their bill."""

import asyncio
import json

import openai
import pytest

CHAT = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "smollm2-135m", "prompt": [5] * 10}
BOTH = pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)],
    ids=["chat", "completions"],
)


@pytest.fixture
async def sdk(gateway):
    async with openai.AsyncOpenAI(
        base_url=gateway.url, api_key=gateway.key, max_retries=0
    ) as client:
        yield client


async def events(client, path, body):
    """The payloads of one stream, in order."""
    async with client.post(path, json=body | {"stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        lines = (await reply.text()).split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_whole(gateway, sdk):
    chat = await sdk.chat.completions.create(**CHAT, n=3)
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    assert [choice.message.content for choice in chat.choices] == [
        " two three four one",
        " three four one two",
        " four one two three",
    ]
    assert {choice.finish_reason for choice in chat.choices} == {"stop"}
    assert chat.usage.completion_tokens == 12
    text = await sdk.completions.create(**TEXT, n=2, max_tokens=2)
    assert [choice.text for choice in text.choices] == [" two three", " three four"]
    assert {choice.finish_reason for choice in text.choices} == {"length"}
    assert (text.usage.prompt_tokens, text.usage.completion_tokens) == (10, 4)


@BOTH
async def test_streamed(gateway, path, body):
    options = {"n": 2, "stream_options": {"include_usage": True}}
    *chunks, last = await events(gateway.client(), path, body | options)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    pieces = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(pieces) == len(chunks)
    for index, said in enumerate([" two three four one", " three four one two"]):
        mine = [piece for piece in pieces if piece["index"] == index]
        texts = [
            piece["delta"].get("content") if "delta" in piece else piece["text"] for piece in mine
        ]
        assert "".join(text or "" for text in texts) == said
        reasons = [piece["finish_reason"] for piece in mine]
        assert reasons == [None] * (len(mine) - 1) + ["stop"]
        if "delta" in mine[0]:
            assert mine[0]["delta"]["role"] == "assistant"
            assert mine[-1]["delta"] == {}


@BOTH
async def test_one_choice_is_not_said_to_the_engine(gateway, path, body):
    async with gateway.client().post(path, json=body | {"n": 1}) as reply:
        assert [choice["index"] for choice in (await reply.json())["choices"]] == [0]
    assert "n" not in gateway.upstream.requests[-1]


async def test_the_prompt_is_billed_once_and_the_output_of_all(gateway):
    gateway.upstream.script.tokens = 3
    async with gateway.client().post("/v1/completions", json=TEXT | {"n": 4}) as reply:
        usage = (await reply.json())["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 12)
    (row,) = await gateway.usage()
    assert (row["prompt_tokens"], row["output_tokens"], row["outcome"]) == (10, 12, "stop")
    read = await gateway.metrics()
    units = read['evenhand_service_units_total{pool="smollm2-135m",tenant="acme"}']
    assert units == 10 + 2 * 12
    assert gateway.upstream.requests[0]["n"] == 4


async def test_one_choice_that_was_cut_makes_the_row_say_so(gateway):
    gateway.upstream.script.tokens = 6
    async with gateway.client().post("/v1/completions", json=TEXT | {"n": 2, "max_tokens": 5}):
        pass
    (row,) = await gateway.usage()
    assert (row["output_tokens"], row["outcome"]) == (10, "length")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_leaving_ends_all_of_them_with_one_abort(gateway, stream):
    gateway.upstream.script.tokens, gateway.upstream.script.between_s = 100, 0.02
    body = TEXT | {"n": 3, "max_tokens": 100, "stream": stream}
    call = asyncio.create_task(read(gateway.client(), body))
    await gateway.eventually(lambda: max(gateway.upstream.emitted.values(), default=0) >= 9)
    call.cancel()
    await gateway.eventually(lambda: not gateway.upstream.running)
    (row,) = await gateway.usage()
    (emitted,) = gateway.upstream.emitted.values()
    assert 9 <= emitted < 300
    assert emitted % 3 == 0
    assert (row["outcome"], row["prompt_tokens"]) == ("cancelled", 10)
    assert row["output_tokens"] == emitted
    assert len(gateway.upstream.aborted) == 1
    inflight = await gateway.metrics()
    assert sum(v for k, v in inflight.items() if k.startswith("evenhand_replica_inflight")) == 0


async def read(client, body):
    async with client.post("/v1/completions", json=body) as reply:
        return reply.status, await reply.read()


# --- limits --------------------------------------------------------------------------------------


async def refusal(client, **fields):
    async with client.post("/v1/completions", json=TEXT | fields) as reply:
        return reply.status, (await reply.json())["error"]


async def test_more_choices_than_may_run_at_once_are_refused(gateway):
    tenant, key = await gateway.new_tenant("three-at-once", concurrency=3)
    status, error = await refusal(gateway.client(key), n=4)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "n")
    assert "concurrency limit of 3" in error["message"]
    assert "tenant" in error["message"]
    assert gateway.upstream.requests == []
    assert gateway.rows(tenant) == [], "a refusal takes nothing"
    async with gateway.client(key).post("/v1/completions", json=TEXT | {"n": 3}) as reply:
        assert reply.status == 200


async def test_more_choices_than_a_replica_runs_at_once_are_refused(make_gateway):
    async with make_gateway() as gateway:
        _, key = await gateway.new_tenant("wide", concurrency=8)
        client = gateway.client(key)
        gateway.upstream.script.slots = 2
        status, error = await gateway.eventually(lambda: _refused(client, n=3))
        assert (status, error["code"], error["param"]) == (400, "invalid_value", "n")
        gateway.upstream.script.slots, gateway.upstream.script.kv_tokens = 8, 64
        await gateway.eventually(lambda: _served(client, n=4))
        status, error = await refusal(client, n=5)
        assert (status, error["code"], error["param"]) == (400, "invalid_value", "n")


async def _served(client, **fields):
    return (await read(client, TEXT | fields))[0] == 200


async def _refused(client, **fields):
    async with client.post("/v1/completions", json=TEXT | fields) as reply:
        return reply.status != 200 and (reply.status, (await reply.json())["error"])


async def test_every_choice_takes_its_part_of_the_concurrency(gateway):
    tenant, key = await gateway.new_tenant("two-at-once", concurrency=2)
    client = gateway.client(key)
    gateway.upstream.script.before_first_s = 30
    first = asyncio.create_task(read(client, TEXT | {"n": 2}))
    await gateway.eventually(lambda: gateway.upstream.running)
    second = asyncio.create_task(read(client, TEXT))
    await gateway.eventually(lambda: _queued(gateway, 1))
    assert len(gateway.upstream.requests) == 1
    gateway.upstream.script.before_first_s = 0
    first.cancel()
    assert (await second)[0] == 200
    await gateway.eventually(lambda: len(gateway.rows(tenant)) == 2)


async def _queued(gateway, depth):
    read = await gateway.metrics()
    return read['evenhand_queue_depth{pool="smollm2-135m",tenant="two-at-once"}'] == depth


async def test_the_longest_answers_of_all_are_reserved_and_settled_to_what_came(gateway):
    _, key = await gateway.new_tenant("counted", tpm=1_000)
    client = gateway.client(key)
    status, error = await refusal(client, n=4, max_tokens=250)
    assert (status, error["code"]) == (429, "rate_limit_exceeded")
    assert (await read(client, TEXT | {"n": 4, "max_tokens": 247}))[0] == 200
    async with client.get("/v1/models") as reply:
        left = int(reply.headers["x-ratelimit-remaining-tokens"])
    assert left == 1_000 - 10 - 4 * 4


# --- an engine that answers something else -------------------------------------------------------


async def test_an_index_that_was_not_asked_for_ends_the_request(gateway):
    gateway.upstream.script.first_index = 1
    status, error = await refusal(gateway.client(), n=2)
    assert (status, error["code"]) == (502, "upstream_error")
    (row,) = await gateway.usage()
    assert row["outcome"] == "error"
    assert row["output_tokens"] <= 2 * 4
    gateway.upstream.script.first_index = 0
    assert (await read(gateway.client(), TEXT | {"n": 2}))[0] == 200


async def test_a_stream_without_all_ends_closes_without_done(gateway):
    gateway.upstream.script.tokens = 0  # [DONE] comes, and no choice was ended
    status, body = await read(gateway.client(), TEXT | {"n": 2, "stream": True})
    assert status == 200
    assert b"upstream_error" in body
    assert b"[DONE]" not in body
