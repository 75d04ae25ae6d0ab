"""The unmodified OpenAI SDK against the running product."""

import openai
import pytest

PARIS = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(stack):
    with openai.OpenAI(base_url=stack.url, api_key=stack.key, max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_the_capital_of_france(client, model):
    answer = client.chat.completions.create(model=model, messages=PARIS, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_says_the_same(client, model):
    stream = client.chat.completions.create(
        model=model,
        messages=PARIS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "The capital of France is Paris."
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert len({c.id for c in chunks}) == 1


def test_without_include_usage_no_chunk_carries_any(client, model):
    stream = client.chat.completions.create(
        model=model, messages=PARIS, temperature=0, stream=True, max_tokens=4
    )
    chunks = list(stream)
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_completions_streamed_or_not(client, model):
    asked = {"model": model, "prompt": "One, two, three,", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**asked)
    streamed = "".join(
        chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)
    )
    assert whole.choices[0].text == streamed
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 8


def test_a_seed_repeats_and_seeds_differ(client, model):
    def say(seed):
        asked = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            temperature=1.0,
            seed=seed,
            max_tokens=24,
        )
        return asked.choices[0].message.content

    assert say(7) == say(7)
    assert say(7) != say(8)


def test_stop_strings_never_show(client, model):
    answer = client.chat.completions.create(
        model=model, messages=PARIS, temperature=0, stop=[" is"]
    )
    assert answer.choices[0].message.content == "The capital of France"
    assert answer.choices[0].finish_reason == "stop"


def test_headers_of_a_success(client, model):
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=PARIS, temperature=0
    )
    assert raw.headers["x-request-id"]
    for dimension in ("requests", "tokens"):
        limit = int(raw.headers[f"x-ratelimit-limit-{dimension}"])
        remaining = int(raw.headers[f"x-ratelimit-remaining-{dimension}"])
        assert 0 <= remaining < limit
        assert raw.headers[f"x-ratelimit-reset-{dimension}"]
    assert raw.parse().usage.prompt_tokens > 0


def test_one_model_is_listed_and_shown(client, model):
    assert client.models.retrieve(model).id == model


def test_error_classes(client, stack, model):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=model, messages=PARIS, extra_body={"nope": 1})
    assert bad.value.param == "nope"
    assert bad.value.code == "unknown_parameter"
    with (
        openai.OpenAI(base_url=stack.url, api_key="eh_nonsense", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as unauthenticated,
    ):
        stranger.models.list()
    assert unauthenticated.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no-such-model", messages=PARIS)
    assert missing.value.code == "model_not_found"


def test_a_spent_rate_limit_is_a_rate_limit_error(stack, model):
    key = stack.new_key("sdk-limited")
    stack.admin("quota", "set", "--tenant", "sdk-limited", "--rpm", "1")
    with openai.OpenAI(base_url=stack.url, api_key=key, max_retries=0) as limited:
        asked = {"model": model, "messages": PARIS, "max_tokens": 1}
        limited.chat.completions.create(**asked)
        with pytest.raises(openai.RateLimitError) as refused:
            limited.chat.completions.create(**asked)
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert "rpm" in refused.value.message
