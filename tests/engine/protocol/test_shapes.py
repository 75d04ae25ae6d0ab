"""The OpenAI SDK's own types accept every body we build, with nothing missing."""

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.protocol import shapes
from engine.protocol.shapes import TokenLogprob

HEAD = shapes.Head("chatcmpl-1", 1_700_000_000, "m")
USAGE = shapes.usage(5, 2, 3)


def test_a_chat_completion_is_what_the_sdk_expects():
    body = shapes.chat_completion(HEAD, [shapes.chat_choice("Hello", "stop")], usage=USAGE)
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
        shapes.completion(HEAD, [shapes.text_choice("Hello", "stop")], usage=USAGE), strict=True
    )
    assert whole.choices[0].text == "Hello"
    last = Completion.model_validate(shapes.completion_usage_chunk(HEAD, USAGE), strict=True)
    assert (last.choices, last.usage.completion_tokens) == ([], 2)


def test_choices_keep_their_index():
    chat = [shapes.chat_choice(str(i), "stop", index=i) for i in range(3)]
    parsed = ChatCompletion.model_validate(shapes.chat_completion(HEAD, chat, usage=USAGE))
    assert [(c.index, c.message.content) for c in parsed.choices] == [(0, "0"), (1, "1"), (2, "2")]
    text = [shapes.text_choice(str(i), "stop", index=i) for i in range(3)]
    parsed = Completion.model_validate(shapes.completion(HEAD, text, usage=USAGE))
    assert [(c.index, c.text) for c in parsed.choices] == [(0, "0"), (1, "1"), (2, "2")]
    assert shapes.chat_chunk(HEAD, "x", index=2)["choices"][0]["index"] == 2
    assert shapes.completion_chunk(HEAD, "x", index=2)["choices"][0]["index"] == 2


EURO = [
    TokenLogprob("a", b"a", None, offset=0),
    TokenLogprob(
        "\ufffd",
        b"\xe2\x82",
        -0.25,
        (TokenLogprob("b", b"b", -0.1), TokenLogprob("\ufffd", b"\xe2\x82", -0.25)),
        offset=1,
    ),
    TokenLogprob("\ufffd", b"\xac", -float("inf"), (TokenLogprob("c", b"c", 0.0),), offset=1),
]


def test_chat_logprobs_are_what_the_sdk_expects():
    body = shapes.chat_logprobs(EURO[1:])
    choice = shapes.chat_choice("x", "stop", logprobs=body)
    whole = shapes.chat_completion(HEAD, [choice], usage=USAGE)
    parsed = ChatCompletion.model_validate(whole, strict=True).choices[0].logprobs
    assert parsed.refusal is None
    assert [(t.token, t.bytes, t.logprob) for t in parsed.content] == [
        ("\ufffd", [0xE2, 0x82], -0.25),
        ("\ufffd", [0xAC], shapes.MIN_LOGPROB),
    ]
    assert [t.token for t in parsed.content[0].top_logprobs] == ["b", "\ufffd"]
    chunk = shapes.chat_chunk(HEAD, "x", logprobs=body)
    assert ChatCompletionChunk.model_validate(chunk, strict=True).choices[0].logprobs.content


def test_completion_logprobs_are_parallel_lists():
    body = shapes.completion_logprobs(EURO, 2)
    # The SDK's type does not know the null that the API gives an echoed prompt's first token.
    choice = shapes.text_choice("x", "stop", logprobs=shapes.completion_logprobs(EURO[1:], 2))
    Completion.model_validate(shapes.completion(HEAD, [choice], usage=USAGE), strict=True)
    assert body == {
        "tokens": ["a", "\ufffd", "\ufffd"],
        "token_logprobs": [None, -0.25, shapes.MIN_LOGPROB],
        "top_logprobs": [
            None,
            {"b": -0.1, "\ufffd": -0.25},
            {"c": 0.0, "\ufffd": shapes.MIN_LOGPROB},
        ],
        "text_offset": [0, 1, 1],
    }
    assert shapes.completion_logprobs(EURO, 0)["top_logprobs"] is None


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
