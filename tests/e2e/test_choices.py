"""n, log-probabilities, penalties, biases and echo, with the unmodified SDK and the real model."""

import math

import openai
import pytest

STORY = [{"role": "user", "content": "Tell me a story."}]
PROMPT = "One, two, three,"


@pytest.fixture(scope="module")
def client(stack):
    with openai.OpenAI(base_url=stack.url, api_key=stack.key, max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="module", autouse=True)
def plenty(stack):
    stack.admin("quota", "set", "--tenant", "default", "--rpm", "100000", "--tpm", "100000000")


def streamed_texts(stream, num_choices):
    """The text of each choice, once the order of the chunks was checked."""
    texts, ended, usages = [""] * num_choices, [], []
    for chunk in stream:
        assert not usages, "usage comes last"
        if not chunk.choices:
            usages.append(chunk.usage)
            continue
        (choice,) = chunk.choices
        assert choice.index not in ended, "nothing comes after the end of a choice"
        said = choice.delta.content if hasattr(choice, "delta") else choice.text
        texts[choice.index] += said or ""
        if choice.finish_reason is not None:
            ended.append(choice.index)
    assert sorted(ended) == list(range(num_choices))
    return texts, usages


def test_two_seeded_answers_differ_and_repeat(client, model):
    asked = {"model": model, "messages": STORY, "n": 2, "seed": 7, "max_tokens": 16}
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1]
    said = [choice.message.content for choice in whole.choices]
    assert said[0] != said[1]
    again = client.chat.completions.create(**asked)
    assert [choice.message.content for choice in again.choices] == said
    texts, (usage,) = streamed_texts(
        client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        ),
        2,
    )
    assert texts == said
    assert usage.completion_tokens == whole.usage.completion_tokens == 32
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    alone = client.chat.completions.create(**asked | {"n": 1})
    assert alone.choices[0].message.content == said[0]
    assert alone.usage.prompt_tokens == whole.usage.prompt_tokens


def test_completions_of_three_answers(client, model):
    asked = {"model": model, "prompt": PROMPT, "n": 3, "seed": 11, "max_tokens": 12}
    whole = client.completions.create(**asked)
    said = [choice.text for choice in whole.choices]
    assert len(set(said)) == 3
    texts, _ = streamed_texts(client.completions.create(**asked, stream=True), 3)
    assert texts == said


def check_tokens(content, text):
    assert b"".join(bytes(token.bytes) for token in content).decode() == text
    for token in content:
        assert token.logprob <= 0
        ordered = [other.logprob for other in token.top_logprobs]
        assert ordered == sorted(ordered, reverse=True)
        assert sum(math.exp(logprob) for logprob in ordered) <= 1 + 1e-6


def test_log_probabilities_of_a_chat(client, model):
    asked = {
        "model": model,
        "messages": STORY,
        "temperature": 0,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 4,
    }
    whole = client.chat.completions.create(**asked)
    content = whole.choices[0].logprobs.content
    check_tokens(content, whole.choices[0].message.content)
    assert len(content) == whole.usage.completion_tokens == 12
    for token in content:
        assert len(token.top_logprobs) == 4
        likeliest = token.top_logprobs[0]
        assert (token.token, token.bytes) == (likeliest.token, likeliest.bytes)
        assert token.logprob == likeliest.logprob
    chunks = list(client.chat.completions.create(**asked, stream=True))
    pieces = [c for chunk in chunks for c in chunk.choices if c.logprobs]
    streamed = [token for piece in pieces for token in piece.logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in content]
    for one, other in zip(streamed, content, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_log_probabilities_of_sampled_answers(client, model):
    answer = client.chat.completions.create(
        model=model,
        messages=STORY,
        temperature=1.5,
        seed=3,
        n=2,
        max_tokens=12,
        logprobs=True,
        top_logprobs=2,
    )
    for choice in answer.choices:
        check_tokens(choice.logprobs.content, choice.message.content)


def test_log_probabilities_of_a_completion(client, model):
    asked = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, "logprobs": 2}
    (choice,) = client.completions.create(**asked).choices
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    starts = [len("".join(told.tokens[:index])) for index in range(len(told.tokens))]
    assert told.text_offset == starts
    for token, logprob, top in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert 2 <= len(top) <= 3
        assert top[token] == logprob == max(top.values())


def test_echo_puts_the_prompt_first(client, model):
    asked = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 6}
    plain = client.completions.create(**asked).choices[0].text
    echoed = client.completions.create(**asked, echo=True)
    assert echoed.choices[0].text == PROMPT + plain
    assert echoed.usage.completion_tokens == 6
    texts, _ = streamed_texts(client.completions.create(**asked, echo=True, n=2, stream=True), 2)
    assert texts == [PROMPT + plain] * 2


def test_echo_scores_the_prompt_too(client, model):
    asked = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 4}
    for _ in range(2):  # cold, and with the prompt in the cache
        answer = client.completions.create(**asked, echo=True, logprobs=1)
        (choice,) = answer.choices
        told = choice.logprobs
        assert "".join(told.tokens) == choice.text
        assert len(told.tokens) == answer.usage.prompt_tokens + 4
        assert told.token_logprobs[0] is None
        assert told.top_logprobs[0] is None
        assert all(logprob <= 0 for logprob in told.token_logprobs[1:])
        assert told.text_offset[-1] == len(choice.text) - len(told.tokens[-1])


def test_a_bias_forces_a_token_and_forbids_one(client, model):
    asked = {"model": model, "prompt": PROMPT, "temperature": 0, "logprobs": 1}
    free = client.completions.create(**asked, max_tokens=1).choices[0]
    token_id = 260  # " the"
    forced = client.completions.create(
        **asked, max_tokens=3, logit_bias={str(token_id): 100}
    ).choices[0]
    assert forced.text == " the the the"
    # Log-probabilities are the model's own: a bias does not change what it thought.
    assert forced.logprobs.top_logprobs[0][free.text] == pytest.approx(
        free.logprobs.token_logprobs[0], abs=1e-3
    )
    chat = client.chat.completions.create(
        model=model, messages=STORY, max_tokens=3, logit_bias={str(token_id): 100}
    )
    assert chat.choices[0].message.content == " the the the"


def test_a_frequency_penalty_wears_a_token_out(client, model):
    def words(penalty):
        answer = client.completions.create(
            model=model,
            prompt=PROMPT,
            temperature=0,
            max_tokens=12,
            logit_bias={"260": 100, "253": 92},  # " the", and " a" that is 8 behind it
            frequency_penalty=penalty,
        )
        return answer.choices[0].text.split()

    assert words(0) == ["the"] * 12
    assert words(2)[:2] == ["the", "the"]
    assert set(words(2)) == {"the", "a"}


def test_a_negative_presence_penalty_makes_it_repeat_itself(client, model):
    def tokens(penalty):
        answer = client.completions.create(
            model=model,
            prompt="Roses are red. Roses are red. Roses are red.",
            temperature=0,
            max_tokens=24,
            logprobs=0,
            presence_penalty=penalty,
        )
        return answer.choices[0].logprobs.tokens

    plain, repeating = tokens(0), tokens(-2)
    assert len(set(repeating)) / len(repeating) < len(set(plain)) / len(plain)


def test_n_over_the_concurrency_names_it(client, model, stack):
    key = stack.new_key("two-at-once")
    stack.admin("quota", "set", "--tenant", "two-at-once", "--concurrency", "2")
    with (
        openai.OpenAI(base_url=stack.url, api_key=key, max_retries=0) as narrow,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        narrow.completions.create(model=model, prompt=PROMPT, max_tokens=1, n=3)
    assert (refused.value.param, refused.value.code) == ("n", "invalid_value")
    assert "concurrency" in refused.value.message
