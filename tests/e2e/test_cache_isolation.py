"""A tenant's prompts are cached for that tenant and for nobody else."""

import itertools

import openai
import pytest

NUMBERED = itertools.count(1)


@pytest.fixture(scope="module")
def model(stack):
    with openai.OpenAI(base_url=stack.url, api_key=stack.key) as sdk:
        return sdk.models.list().data[0].id


@pytest.fixture
def tenants(stack):
    clients = [
        openai.OpenAI(base_url=stack.url, api_key=stack.new_key(f"cache-{next(NUMBERED)}"))
        for _ in range(2)
    ]
    yield clients
    for client in clients:
        client.close()


def exactly(tokens):
    """A completion prompt of that many token ids."""
    return [1_000 + i % 997 for i in range(tokens)]


def ask(client, model, prompt, **extra):
    answer = client.completions.create(
        model=model, prompt=prompt, max_tokens=1, temperature=0, extra_body=extra or None
    )
    return answer.usage.prompt_tokens_details.cached_tokens


def test_the_second_time_hits_for_the_same_tenant_only(stack, model, tenants):
    a, b = tenants
    prompt = exactly(500)
    assert ask(a, model, prompt) == 0
    assert ask(a, model, prompt) == 496
    assert ask(b, model, prompt) == 0
    assert ask(b, model, prompt) == 496


def test_a_scope_narrows_and_never_widens(stack, model, tenants):
    a, b = tenants
    prompt = exactly(300)
    assert ask(a, model, prompt, cache_scope="one") == 0
    assert ask(a, model, prompt, cache_scope="one") >= 288
    assert ask(a, model, prompt, cache_scope="two") == 0
    assert ask(a, model, prompt) == 0
    assert ask(b, model, prompt, cache_scope="one") == 0


def test_off_neither_hits_nor_inserts(stack, model, tenants):
    a, _ = tenants
    prompt = exactly(200)
    assert ask(a, model, prompt, cache="off") == 0
    assert ask(a, model, prompt) == 0
    assert ask(a, model, prompt) > 0
    assert ask(a, model, prompt, cache="off") == 0


@pytest.mark.parametrize("field", ["cache_salt", "priority", "kv_transfer_params", "nope"])
def test_what_only_the_gateway_may_say_is_refused_by_name(stack, model, field):
    with (
        openai.OpenAI(base_url=stack.url, api_key=stack.key) as client,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        ask(client, model, "hello", **{field: "A" * 43})
    assert refused.value.param == field
