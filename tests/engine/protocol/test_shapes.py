"""The OpenAI SDK's own types accept every body we build, with nothing missing."""

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.protocol import shapes

HEAD = shapes.Head("chatcmpl-1", 1_700_000_000, "m")
USAGE = shapes.usage(5, 2, 3)


def test_a_chat_completion_is_what_the_sdk_expects():
    body = shapes.chat_completion(HEAD, "Hello", "stop", usage=USAGE)
    parsed = ChatCompletion.model_validate(body, strict=True)
    assert parsed.choices[0].message.content == "Hello"
    assert parsed.usage.total_tokens == 7
    assert parsed.usage.prompt_tokens_details.cached_tokens == 3
    assert body["choices"][0]["message"]["refusal"] is None
    assert body["choices"][0]["logprobs"] is None


def test_chat_chunks_are_what_the_sdk_expects():
    chunks = [
        shapes.chat_chunk(HEAD, role=True),
        shapes.chat_chunk(HEAD, "Hel"),
        shapes.chat_chunk(HEAD, None, "length"),
        shapes.chat_usage_chunk(HEAD, USAGE),
    ]
    parsed = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert parsed[0].choices[0].delta.role == "assistant"
    assert parsed[1].choices[0].delta.content == "Hel"
    assert parsed[2].choices[0].finish_reason == "length"
    assert chunks[2]["choices"][0]["delta"] == {}
    assert (parsed[3].choices, parsed[3].usage.total_tokens) == ([], 7)


def test_completions_are_what_the_sdk_expects():
    whole = Completion.model_validate(
        shapes.completion(HEAD, "Hello", "stop", usage=USAGE), strict=True
    )
    assert whole.choices[0].text == "Hello"
    last = Completion.model_validate(shapes.completion_usage_chunk(HEAD, USAGE), strict=True)
    assert (last.choices, last.usage.completion_tokens) == ([], 2)


@pytest.mark.parametrize("build", [shapes.chat_chunk, shapes.completion_chunk])
def test_usage_of_a_chunk_is_absent_null_or_an_object(build):
    assert "usage" not in build(HEAD, "x")
    assert build(HEAD, "x", usage=None)["usage"] is None
    assert build(HEAD, "x", usage=USAGE)["usage"] == USAGE


def test_unknown_cached_tokens_are_left_out_and_none_is_zero():
    assert "prompt_tokens_details" not in shapes.usage(5, 2, None)
    assert shapes.usage(5, 2, 0)["prompt_tokens_details"] == {"cached_tokens": 0}


def test_models_are_what_the_sdk_expects():
    body = shapes.model_list([shapes.model_card("m", 1)])
    assert body["object"] == "list"
    assert Model.model_validate(body["data"][0], strict=True).id == "m"
