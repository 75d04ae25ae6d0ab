"""What an admin changes beside a running gateway holds for the next requests."""

import time

import openai
import pytest


def eventually(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def client(stack):
    with openai.OpenAI(base_url=stack.url, api_key=stack.new_key("changing"), max_retries=0) as sdk:
        yield sdk


def test_a_limit_a_revocation_and_what_is_left(stack, client):
    model = client.models.list().data[0].id
    asked = {"model": model, "prompt": "Hi", "max_tokens": 1}

    stack.admin("quota", "set", "--tenant", "changing", "--rpm", "2")
    eventually(
        lambda: (
            stack.admin("quota", "show", "--tenant", "changing")["effective"]["rpm"]["value"] == 2
        )
    )
    eventually(
        lambda: (
            client.models.with_raw_response.list().headers.get("x-ratelimit-limit-requests") == "2"
        )
    )
    client.completions.create(**asked)
    client.completions.create(**asked)
    with pytest.raises(openai.RateLimitError) as refused:
        client.completions.create(**asked)
    assert "changing" in refused.value.message
    assert "rpm" in refused.value.message
    assert int(refused.value.response.headers["retry-after"]) >= 1

    shown = stack.admin("quota", "show", "--tenant", "changing")
    assert shown["left"]["rpm"] == 0

    [listed] = stack.admin("key", "list", "--tenant", "changing")
    stack.admin("key", "revoke", listed["id"])

    def refused_now():
        try:
            client.models.list()
        except openai.AuthenticationError:
            return True
        return False

    eventually(refused_now)
