"""Log-probabilities, token ids and echoes: in step with the text, in OpenAI's and vLLM's shapes.

The fake runner gives the token of rank r the probability 2**-r; rank 2 is the next token id.
"""

from math import log

import pytest

from engine.protocol.text.detokenizer import Detokenizer
from engine.server import service
from tests.engine.server.conftest import END_OF_PROMPT, chat, client_for, completion, echo

HALF, QUARTER = log(0.5), log(0.25)
TEXT = "Grüße"


def near(values):
    return pytest.approx(values, abs=1e-9)


async def test_chat_logprobs(client, text_model):
    path = "/v1/chat/completions"
    payload = chat(TEXT, logprobs=True, top_logprobs=2)
    async with await client.post(path, payload) as response:
        choice = (await response.json())["choices"][0]
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    *spoken, end = content
    assert bytes(byte for token in spoken for byte in token["bytes"]).decode() == TEXT
    assert end["token"] == "<|im_end|>"
    assert [token["logprob"] for token in content] == near([HALF] * len(content))
    assert [len(token["top_logprobs"]) for token in content] == [2] * len(content)
    first = content[0]["top_logprobs"]
    following = text_model.token_bytes(text_model.encode("G")[0] + 1)
    assert first[0] == {"token": "G", "logprob": near(HALF), "bytes": [ord("G")]}
    assert first[1] == {
        "token": following.decode(errors="replace"),
        "logprob": near(QUARTER),
        "bytes": list(following),
    }
    *events, _ = await client.events(path, payload | {"stream": True})
    streamed = [
        token
        for event in events
        if event["choices"][0]["logprobs"] is not None
        for token in event["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == content


async def test_chat_logprobs_without_top(client):
    async with await client.post("/v1/chat/completions", chat("x", logprobs=True)) as response:
        content = (await response.json())["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in content] == [[], []]


async def test_completion_logprobs(client):
    _, body = await client.completion(echo(TEXT), logprobs=1)
    (choice,) = body["choices"]
    listed = choice["logprobs"]
    assert set(listed) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert {len(each) for each in listed.values()} == {body["usage"]["completion_tokens"]}
    assert listed["text_offset"] == [0, 1, 2, 2, 3, 3, 4, 5]  # ü and ß are two tokens each
    assert listed["tokens"] == ["G", "r", "�", "�", "�", "�", "e", "<|im_end|>"]
    assert listed["token_logprobs"] == near([HALF] * 8)
    assert listed["top_logprobs"][0] == {"G": near(HALF)}
    *events, _ = await client.events(
        "/v1/completions", completion(echo(TEXT), logprobs=1, stream=True)
    )
    for name, whole in listed.items():
        parts = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["logprobs"]]
        assert [item for part in parts for item in part[name]] == whole


async def test_e2_what_a_stop_string_cut_off_is_in_no_list(client):
    text = "grün STOP this"
    payload = completion(echo(text), stop=["STOP"], logprobs=2, return_token_ids=True)
    status, body = await client.completion(**payload_of(payload))
    (choice,) = body["choices"]
    assert (status, choice["text"], choice["finish_reason"]) == (200, "grün ", "stop")
    kept = len("grün ".encode())
    assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == kept
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2, 3, 4]
    assert body["usage"]["completion_tokens"] == len("grün STOP".encode())  # all were computed
    *events, _ = await client.events("/v1/completions", payload | {"stream": True})
    pieces = [event["choices"][0] for event in events]
    assert "".join(piece["text"] for piece in pieces) == "grün "
    assert sum(len(piece.get("token_ids", ())) for piece in pieces) == kept
    sent = 0
    for piece in pieces:
        sent += len(piece["text"])
        if piece["logprobs"]:  # no token comes before its text
            assert max(piece["logprobs"]["text_offset"]) < sent


def payload_of(payload):
    return {name: value for name, value in payload.items() if name != "model"}


@pytest.mark.parametrize("include", [False, True])
async def test_e2_a_stop_string_may_be_kept(client, include):
    fields = {"stop": ["STOP"], "include_stop_str_in_output": include, "logprobs": 0}
    _, body = await client.completion(echo("a STOP b"), **fields)
    (choice,) = body["choices"]
    assert choice["text"] == ("a STOP" if include else "a ")
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["logprobs"]["top_logprobs"] is None
    assert body["usage"]["completion_tokens"] == len("a STOP")


async def test_min_tokens_holds_back_stop_strings_and_stop_tokens(client, text_model):
    _, body = await client.completion(echo("ab ab ab"), stop=["ab"], min_tokens=3)
    assert body["choices"][0]["text"] == "ab "
    _, body = await client.completion(echo("ab ab ab"), stop=["ab"], min_tokens=2)
    assert body["choices"][0]["text"] == "ab "
    _, body = await client.completion(echo("ab ab ab"), stop=["ab"], min_tokens=1)
    assert body["choices"][0]["text"] == ""


async def test_special_tokens_may_be_shown(client):
    fields = {"skip_special_tokens": False, "include_stop_str_in_output": True}
    _, body = await client.completion(echo("x"), **fields)
    assert body["choices"][0]["text"] == "x<|im_end|>"
    _, body = await client.completion(echo("x"), skip_special_tokens=False)
    assert body["choices"][0]["text"] == "x"


async def test_tokens_as_ids(client, text_model):
    prompt = text_model.encode(echo("hé"))
    said = [*text_model.encode("hé"), *text_model.eos_token_ids]
    _, body = await client.completion(
        prompt, logprobs=1, return_tokens_as_token_ids=True, return_token_ids=True
    )
    (choice,) = body["choices"]
    assert choice["token_ids"] == said
    assert choice["prompt_token_ids"] == prompt
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in said]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]
    assert list(choice["logprobs"]["top_logprobs"][0]) == [f"token_id:{said[0]}"]
    path = "/v1/chat/completions"
    payload = chat("hé", logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True)
    async with await client.post(path, payload) as response:
        body = await response.json()
    assert body["prompt_token_ids"]
    content = body["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == [f"token_id:{each}" for each in said]
    assert bytes(content[1]["bytes"] + content[2]["bytes"]) == "é".encode()
    opening, *events, _ = await client.events(path, payload | {"stream": True})
    assert opening["prompt_token_ids"] == body["prompt_token_ids"]
    ids = [each for event in events for each in event["choices"][0].get("token_ids", ())]
    assert ids == said


# --- prompts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_first(client, text_model, stream):
    prompt = echo("hé")
    payload = completion(prompt, echo=True, n=2, stream=stream)
    texts = ["", ""]
    if stream:
        for event in (await client.events("/v1/completions", payload))[:-1]:
            texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    else:
        _, body = await client.completion(**payload_of(payload))
        texts = [choice["text"] for choice in body["choices"]]
        assert body["usage"]["completion_tokens"] == 2 * 4
    assert texts == [prompt + "hé"] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chunk", [512, 16])
async def test_echo_with_logprobs_lists_the_prompts_tokens(launch, text_model, stream, chunk):
    engine = launch(max_num_batched_tokens=chunk)
    prompt = echo("the prompt é " * 4)
    payload = completion(prompt, echo=True, logprobs=2, n=2, max_tokens=3, stream=stream)
    async with client_for(engine) as client:
        listed, texts = [{}, {}], ["", ""]
        if stream:
            for event in (await client.events("/v1/completions", payload))[:-1]:
                (choice,) = event["choices"]
                texts[choice["index"]] += choice["text"]
                for name, items in (choice["logprobs"] or {}).items():
                    listed[choice["index"]].setdefault(name, []).extend(items)
        else:
            _, body = await client.completion(**payload_of(payload))
            listed = [choice["logprobs"] for choice in body["choices"]]
            texts = [choice["text"] for choice in body["choices"]]
    assert listed[0] == listed[1]
    ids = text_model.encode(prompt)
    tokens = listed[0]["tokens"]
    assert len(tokens) == len(ids) + 3
    assert tokens[:4] == ["t", "h", "e", " "]
    assert listed[0]["token_logprobs"][0] is None
    assert listed[0]["top_logprobs"][0] is None
    assert all(value < 0 for value in listed[0]["token_logprobs"][1:])
    assert len(listed[0]["top_logprobs"][1]) in {2, 3}
    offsets = listed[0]["text_offset"]
    decoder = Detokenizer([text_model.token_bytes(i) for i in range(text_model.vocab_size)], ())
    assert offsets[: len(ids)] == offsets_of(decoder, ids)
    assert offsets[len(ids)] == len(prompt)
    assert texts == [prompt + "the"] * 2


def offsets_of(decoder, ids):
    offsets, length = [], 0
    for token_id in ids:
        offsets.append(length)
        length += len(decoder.push(token_id))
    return offsets


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_prompt_logprobs_as_vllm_has_them(client, path):
    word = "abc"
    body = completion(word + END_OF_PROMPT) if path == "/v1/completions" else chat(word)
    payload = body | {"prompt_logprobs": 1, "max_tokens": 1}
    async with await client.post(path, payload) as response:
        answer = await response.json()
    holder = answer if path == "/v1/chat/completions" else answer["choices"][0]
    listed = holder["prompt_logprobs"]
    assert len(listed) == answer["usage"]["prompt_tokens"]
    assert listed[0] is None
    for entry in listed[1:]:
        assert all(set(v) == {"logprob", "rank", "decoded_token"} for v in entry.values())
        ranks = [value["rank"] for value in entry.values()]
        assert 1 in ranks
        assert len(entry) == (1 if ranks[0] == 1 else 2)
    at = [next(iter(entry.values()))["decoded_token"] for entry in listed[-3:]]
    assert at == ["b", "c", END_OF_PROMPT]


async def test_a7_prompt_logprobs_of_a_warm_prompt_are_those_of_a_cold_one(client):
    prompt = "w" * 100
    fields = {"prompt_logprobs": 2, "max_tokens": 1}
    _, cold = await client.completion(prompt, **fields)
    await client.completion(prompt, max_tokens=1)
    before = await client.metric("evenhand_engine_prefix_cache_hits_tokens_total")
    _, warm = await client.completion(prompt, **fields)
    assert warm["choices"][0]["prompt_logprobs"] == cold["choices"][0]["prompt_logprobs"]
    assert warm["usage"] == cold["usage"]
    assert await client.metric("evenhand_engine_prefix_cache_hits_tokens_total") == before


async def test_a_prompt_of_one_token_has_nothing_to_score(client):
    _, body = await client.completion([65], echo=True, logprobs=1, max_tokens=1, prompt_logprobs=1)
    (choice,) = body["choices"]
    assert choice["prompt_logprobs"] == [None]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 2
    payload = completion([65], echo=True, logprobs=1, max_tokens=1, stream=True)
    events = await client.events("/v1/completions", payload)
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == choice["text"]


async def test_a_prompt_that_can_never_fit_is_not_put_into_words(client, monkeypatch):
    def spelled(*_):
        raise AssertionError("the echo of a lost cause was written")

    monkeypatch.setattr(service, "echo_of", spelled)
    status, body = await client.completion([65] * 512, echo=True)
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
