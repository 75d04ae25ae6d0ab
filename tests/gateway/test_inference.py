"""The happy paths over real sockets, with the unmodified OpenAI SDK."""

import json

import openai
import pytest

ASK = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "smollm2-135m", "prompt": "Once upon"}


@pytest.fixture
async def sdk(gateway):
    async with openai.AsyncOpenAI(
        base_url=gateway.url, api_key=gateway.key, max_retries=0
    ) as client:
        yield client


async def test_a_whole_chat(gateway, sdk):
    raw = await sdk.chat.completions.with_raw_response.create(**ASK)
    answer = raw.parse()
    assert answer.choices[0].message.content == " two three four one"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens == len(gateway.upstream.requests[0]["prompt"])
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.headers["x-ratelimit-limit-requests"] == "600"
    assert raw.headers["x-ratelimit-remaining-requests"] == "599"


async def test_a_streamed_chat_without_usage(gateway, sdk):
    chunks = [chunk async for chunk in await sdk.chat.completions.create(**ASK, stream=True)]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == " two three four one"
    assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
    assert len({(c.id, c.created) for c in chunks}) == 1
    assert all("usage" not in c.model_fields_set for c in chunks)


async def test_a_streamed_chat_with_usage(gateway, sdk):
    stream = await sdk.chat.completions.create(
        **ASK, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 4


async def test_completions_whole_and_streamed(gateway, sdk):
    whole = await sdk.completions.create(**TEXT, max_tokens=2)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (" two three", "length")
    stream = await sdk.completions.create(**TEXT, max_tokens=2, stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == " two three"
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_models(gateway, sdk):
    listed = await sdk.models.list()
    assert [card.id for card in listed.data] == ["smollm2-135m"]
    assert (await sdk.models.retrieve("smollm2-135m")).id == "smollm2-135m"
    with pytest.raises(openai.NotFoundError) as refused:
        await sdk.models.retrieve("gpt-9")
    assert refused.value.code == "model_not_found"


async def test_unknown_cached_tokens_are_left_out_and_billed_in_full(gateway, sdk):
    gateway.upstream.script.cached_tokens = None
    answer = await sdk.chat.completions.create(**ASK)
    assert answer.usage.prompt_tokens_details is None
    (row,) = await gateway.usage()
    assert row["cached_tokens"] is None


async def test_what_the_engine_is_sent(gateway, sdk):
    await sdk.chat.completions.create(**ASK, max_completion_tokens=3, stop=["x"], seed=7)
    sent = gateway.upstream.requests[0]
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (sent["max_tokens"], sent["stop"], sent["seed"]) == (3, ["x"], 7)
    assert sent["cache_owner"] == str(gateway.tenant.id)
    assert sent["cache_weight"] == 1000
    assert all(isinstance(token, int) for token in sent["prompt"])
    headers = {name.lower(): value for name, value in gateway.upstream.headers[0].items()}
    assert headers["x-request-id"] == sent["request_id"]
    version, trace_id, span_id, _ = headers["traceparent"].split("-")
    assert (version, len(trace_id), len(span_id)) == ("00", 32, 16)
    assert gateway.key not in json.dumps(headers)


async def test_a_callers_trace_goes_on(gateway, sdk):
    trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    await sdk.chat.completions.create(**ASK, extra_headers={"traceparent": trace})
    headers = {name.lower(): value for name, value in gateway.upstream.headers[0].items()}
    assert headers["traceparent"].split("-")[1] == "ab" * 16


async def test_one_settled_row_per_request(gateway, sdk):
    gateway.upstream.script.cached_tokens = 2
    raw = await sdk.chat.completions.with_raw_response.create(**ASK)
    (row,) = await gateway.usage()
    assert row["request_id"] == raw.headers["x-request-id"]
    assert (row["outcome"], row["output_tokens"], row["cached_tokens"]) == ("stop", 4, 2)
    assert row["prompt_tokens"] == raw.parse().usage.prompt_tokens
    assert row["route"] == "/v1/chat/completions"
    assert row["duration_s"] > 0


async def test_metrics_tell_of_it(gateway, sdk):
    await sdk.chat.completions.create(**ASK)
    read = await gateway.metrics()
    labels = 'code="200",model="smollm2-135m",route="/v1/chat/completions",tenant="acme"'
    assert read[f"evenhand_requests_total{{{labels}}}"] == 1
    assert read['evenhand_tokens_total{model="smollm2-135m",tenant="acme",type="output"}'] == 4
    assert read['evenhand_store_up{store="database"}'] == 1
    assert read['evenhand_queue_depth{pool="smollm2-135m",tenant="acme"}'] == 0
    assert sum(v for k, v in read.items() if k.startswith("evenhand_replica_up")) == 1
    assert read["evenhand_gateway_overhead_seconds_count"] == 1
    assert (
        read['evenhand_time_to_first_token_seconds_count{model="smollm2-135m",tenant="acme"}'] == 1
    )
    units = read['evenhand_service_units_total{pool="smollm2-135m",tenant="acme"}']
    assert units == len(gateway.upstream.requests[0]["prompt"]) + 2 * 4
