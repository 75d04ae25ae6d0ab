"""Log-probabilities, biases, penalties, echo: what the engine is asked and the client reads."""

import json

import openai
import pytest

CHAT = {"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "smollm2-135m", "prompt": "Once upon"}
PART_OF_A_CHARACTER = 10_813
REST_OF_THE_CHARACTER = 38_887


@pytest.fixture
async def sdk(gateway):
    async with openai.AsyncOpenAI(
        base_url=gateway.url, api_key=gateway.key, max_retries=0
    ) as client:
        yield client


async def test_the_engine_is_asked_only_for_what_was_asked(gateway, sdk):
    await sdk.chat.completions.create(**CHAT)
    plain = set(gateway.upstream.requests[-1])
    assert plain == {
        *("model", "prompt", "max_tokens", "temperature", "top_p", "stream", "stream_options"),
        *("cache_salt", "cache_owner", "cache_weight", "request_id"),
    }
    await sdk.completions.create(
        **TEXT,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"42": -100, "7": 1.5},
        logprobs=3,
        echo=True,
        n=2,
        best_of=2,
    )
    sent = gateway.upstream.requests[-1]
    assert {name: value for name, value in sent.items() if name not in plain} == {
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"42": -100, "7": 1.5},
        "logprobs": 3,
        "return_tokens_as_token_ids": True,
        "echo": True,
        "n": 2,
    }


async def test_of_a_chat(gateway, sdk):
    answer = await sdk.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    assert gateway.upstream.requests[-1]["logprobs"] == 2
    first, *others = answer.choices[0].logprobs.content
    assert len(others) == 3
    assert (first.token, first.logprob, bytes(first.bytes)) == (" the", -1.5, b" the")
    likeliest = [(top.token, top.logprob, bytes(top.bytes)) for top in first.top_logprobs]
    assert likeliest == [("<|im_end|>", -0.5, b""), (" a", -1.0, b" a")]


async def test_of_a_chat_without_others(gateway, sdk):
    answer = await sdk.chat.completions.create(**CHAT, logprobs=True)
    assert gateway.upstream.requests[-1]["logprobs"] == 0
    assert [one.top_logprobs for one in answer.choices[0].logprobs.content] == [[]] * 4


async def test_of_a_streamed_chat(gateway, sdk):
    stream = await sdk.chat.completions.create(
        **CHAT, logprobs=True, top_logprobs=1, n=2, stream=True
    )
    chunks = [chunk async for chunk in stream]
    for index in range(2):
        mine = [c for chunk in chunks for c in chunk.choices if c.index == index]
        said = [c.logprobs.content[0].token for c in mine if c.logprobs]
        assert said == [" the"] * 4
        assert all(c.delta.content for c in mine if c.logprobs)


async def test_of_a_completion(gateway, sdk):
    answer = await sdk.completions.create(**TEXT, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == [" the"] * 4
    assert logprobs.token_logprobs == [-1.5] * 4
    assert logprobs.top_logprobs == [{"<|im_end|>": -0.5, " the": -1.5}] * 4
    assert logprobs.text_offset == [0, 4, 8, 12]


async def test_of_a_streamed_completion(gateway, sdk):
    stream = await sdk.completions.create(**TEXT, logprobs=0, n=2, stream=True)
    chunks = [chunk async for chunk in stream]
    for index in range(2):
        mine = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert [c.logprobs.text_offset for c in mine] == [[0], [4], [8], [12]]
        assert [c.logprobs.top_logprobs for c in mine] == [None] * 4


async def test_a_part_of_a_character_is_told_by_its_bytes(gateway, sdk):
    gateway.upstream.token = PART_OF_A_CHARACTER
    answer = await sdk.chat.completions.create(**CHAT, logprobs=True)
    first = answer.choices[0].logprobs.content[0]
    assert (first.token, first.bytes) == (r"bytes:\xf0\x9f", [0xF0, 0x9F])


async def test_where_a_token_begins_that_cuts_a_character_off(gateway, sdk):
    gateway.upstream.token = PART_OF_A_CHARACTER
    answer = await sdk.completions.create(**TEXT, logprobs=0)
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2, 3]


async def test_where_a_token_begins_after_a_character_of_the_prompts(gateway, sdk):
    gateway.upstream.token = REST_OF_THE_CHARACTER
    prompt = [28, PART_OF_A_CHARACTER]
    answer = await sdk.completions.create(**{**TEXT, "prompt": prompt}, logprobs=0)
    assert answer.choices[0].logprobs.text_offset == [0, 1, 3, 5]
    echoed = await sdk.completions.create(**{**TEXT, "prompt": [28]}, logprobs=0, echo=True)
    assert echoed.choices[0].logprobs.text_offset == [0, 2, 4, 6]


async def test_without_asking_there_are_none(gateway, sdk):
    answer = await sdk.completions.create(**TEXT)
    assert answer.choices[0].logprobs is None
    chat = await sdk.chat.completions.create(**CHAT, logprobs=False)
    assert chat.choices[0].logprobs is None


BAD = {
    "n = 9": ("chat", {"n": 9}, "invalid_value", "n"),
    "n = 2.0": ("chat", {"n": 2.0}, "invalid_type", "n"),
    "n a string": ("text", {"n": "2"}, "invalid_type", "n"),
    "best_of alone": ("text", {"best_of": 2}, "unsupported_parameter", "best_of"),
    "a penalty over 2": ("chat", {"presence_penalty": 2.1}, "invalid_value", "presence_penalty"),
    "a penalty of true": ("chat", {"frequency_penalty": True}, "invalid_type", "frequency_penalty"),
    "logprobs a number": ("chat", {"logprobs": 2}, "invalid_type", "logprobs"),
    "logprobs a boolean": ("text", {"logprobs": True}, "invalid_type", "logprobs"),
    "logprobs = 6": ("text", {"logprobs": 6}, "invalid_value", "logprobs"),
    "top_logprobs = 21": (
        "chat",
        {"logprobs": True, "top_logprobs": 21},
        "invalid_value",
        "top_logprobs",
    ),
    "top_logprobs alone": ("chat", {"top_logprobs": 2}, "invalid_value", "top_logprobs"),
    "echo in a chat": ("chat", {"echo": True}, "unknown_parameter", "echo"),
    "echo a string": ("text", {"echo": "yes"}, "invalid_type", "echo"),
    "a bias of a list": ("chat", {"logit_bias": [1]}, "invalid_type", "logit_bias"),
    "a bias of 101": ("chat", {"logit_bias": {"1": 101}}, "invalid_value", "logit_bias.1"),
    "a bias of null": ("chat", {"logit_bias": {"1": None}}, "invalid_type", "logit_bias.1"),
    "a bias of a word": ("chat", {"logit_bias": {"cat": 1}}, "invalid_value", "logit_bias.cat"),
    "a bias of -1": ("chat", {"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias.-1"),
    "a bias beyond the vocabulary": (
        "chat",
        {"logit_bias": {"49152": 1}},
        "invalid_value",
        "logit_bias.49152",
    ),
    "301 biases": (
        "chat",
        {"logit_bias": {str(i): 1 for i in range(301)}},
        "invalid_value",
        "logit_bias",
    ),
    "min_p": ("chat", {"min_p": 0.1}, "unknown_parameter", "min_p"),
    "allowed_token_ids": (
        "text",
        {"allowed_token_ids": [1]},
        "unknown_parameter",
        "allowed_token_ids",
    ),
    "prompt_logprobs": ("text", {"prompt_logprobs": 1}, "unknown_parameter", "prompt_logprobs"),
    "return_tokens_as_token_ids": (
        "text",
        {"return_tokens_as_token_ids": True},
        "unknown_parameter",
        "return_tokens_as_token_ids",
    ),
}


async def test_hostile_values(gateway):
    client = gateway.client()
    for name, (route, fields, code, param) in BAD.items():
        body, path = (
            (CHAT, "/v1/chat/completions") if route == "chat" else (TEXT, "/v1/completions")
        )
        async with client.post(path, json=body | fields) as reply:
            error = (await reply.json())["error"]
            assert (reply.status, error["code"], error["param"]) == (400, code, param), name
    for spelled in ("NaN", "Infinity", "1e999"):
        raw = json.dumps(TEXT)[:-1] + f', "presence_penalty": {spelled}}}'
        async with client.post("/v1/completions", data=raw) as reply:
            assert reply.status == 400, spelled
    assert gateway.upstream.requests == []
