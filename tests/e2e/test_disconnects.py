"""A client that leaves gives back everything it held, in every phase, and is billed once."""

import json
import time
import urllib.request

import pytest

from tests.support import http

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def tenant(stack):
    """A tenant that may run one sequence at a time, so that a second request queues."""
    key = stack.new_key("leaver")
    stack.admin("quota", "set", "--tenant", "leaver", "--concurrency", "1", "--rpm", "10000")
    return key


@pytest.fixture(scope="module")
def model(stack, tenant):
    headers = {"authorization": f"Bearer {tenant}"}
    answer = http.send(stack.url, http.request_bytes("GET", "/v1/models", headers))
    return answer.json()["data"][0]["id"]


class Call:
    """A request whose connection this test holds."""

    def __init__(self, stack, key, model, *, stream, prompt_tokens, max_tokens, first_token, n=1):
        body = json.dumps(
            {
                "model": model,
                "prompt": [first_token, *range(2_000, 2_000 + prompt_tokens - 1)],
                "max_tokens": max_tokens,
                "temperature": 1.5,
                "stream": stream,
                "n": n,
            }
        ).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self.socket = http.connect(stack.url)
        self.socket.sendall(http.request_bytes("POST", TEXT, headers, body))

    def read_until(self, marker, timeout_s=60):
        self.socket.settimeout(timeout_s)
        seen = b""
        while marker not in seen:
            received = self.socket.recv(4096)
            assert received, seen
            seen += received
        return seen

    def leave(self):
        self.socket.close()


def metrics(stack, name):
    """Sum of one engine metric's samples, relayed by the admin listener."""
    with urllib.request.urlopen(f"{stack.admin_url}/metrics/engine") as answer:
        lines = answer.read().decode().splitlines()
    values = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(name)
    }
    assert values, name
    return values


def held(stack):
    return metrics(stack, "evenhand_engine_kv_blocks")['evenhand_engine_kv_blocks{state="held"}']


def wait_for(condition, what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def engine_is_idle(stack):
    running = sum(metrics(stack, "evenhand_engine_requests_running").values())
    waiting = sum(metrics(stack, "evenhand_engine_requests_waiting").values())
    return (running, waiting, held(stack)) == (0, 0, 0)


def usage(stack, slug="leaver"):
    """(requests, prompt tokens, output tokens) of the tenant so far."""
    answer = stack.admin("usage", "--tenant", slug)
    rows = answer["rows"] if isinstance(answer, dict) else answer
    return tuple(
        sum(row[field] for row in rows) for field in ("requests", "prompt_tokens", "output_tokens")
    )


def queued(stack):
    with urllib.request.urlopen(f"{stack.admin_url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("evenhand_queue_depth{") and 'tenant="leaver"' in line
    )


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_while_queued(stack, tenant, model, stream):
    wait_for(lambda: engine_is_idle(stack), "idle before")
    requests, prompt, _ = usage(stack)
    shape = {"prompt_tokens": 20, "max_tokens": 400}
    runs = Call(stack, tenant, model, stream=True, first_token=11 + stream, **shape)
    runs.read_until(b"data: ")
    waits = Call(stack, tenant, model, stream=stream, first_token=21 + stream, **shape)
    wait_for(lambda: queued(stack) == 1, "the second request waits")
    waits.leave()
    wait_for(lambda: queued(stack) == 0, "it no longer waits")
    runs.leave()
    wait_for(lambda: engine_is_idle(stack), "idle after")
    wait_for(lambda: usage(stack)[0] == requests + 2, "one row each")
    assert usage(stack)[1] == prompt + 20


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_before_the_first_byte(stack, tenant, model, stream):
    wait_for(lambda: engine_is_idle(stack), "idle before")
    requests, *_ = usage(stack)
    computed = sum(metrics(stack, "evenhand_engine_computed_tokens_total").values())
    call = Call(
        stack,
        tenant,
        model,
        stream=stream,
        prompt_tokens=1_500,
        max_tokens=8,
        first_token=31 + stream,
    )
    wait_for(lambda: held(stack) > 0, "the prompt is being computed")
    call.leave()
    wait_for(lambda: engine_is_idle(stack), "idle after")
    assert sum(metrics(stack, "evenhand_engine_computed_tokens_total").values()) < computed + 1_508
    wait_for(lambda: usage(stack)[0] == requests + 1, "one row")
    assert usage(stack)[0] == requests + 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_while_it_answers(stack, tenant, model, stream):
    wait_for(lambda: engine_is_idle(stack), "idle before")
    requests, _, output = usage(stack)
    generated = sum(metrics(stack, "evenhand_engine_generation_tokens_total").values())
    call = Call(
        stack,
        tenant,
        model,
        stream=stream,
        prompt_tokens=20,
        max_tokens=500,
        first_token=41 + stream,
    )
    wait_for(
        lambda: (
            sum(metrics(stack, "evenhand_engine_generation_tokens_total").values()) >= generated + 3
        ),
        "tokens are generated",
    )
    call.leave()
    wait_for(lambda: engine_is_idle(stack), "idle after")
    wait_for(lambda: usage(stack)[0] == requests + 1, "one row")
    emitted = sum(metrics(stack, "evenhand_engine_generation_tokens_total").values()) - generated
    assert usage(stack)[2] - output == emitted


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_several_answers_ends_them_all(stack, model, stream):
    slug = f"leaver-of-three-{stream}".lower()
    key = stack.new_key(slug)
    wait_for(lambda: engine_is_idle(stack), "idle before")
    generated = sum(metrics(stack, "evenhand_engine_generation_tokens_total").values())
    call = Call(
        stack,
        key,
        model,
        stream=stream,
        prompt_tokens=20,
        max_tokens=400,
        first_token=51 + stream,
        n=3,
    )
    wait_for(
        lambda: (
            sum(metrics(stack, "evenhand_engine_generation_tokens_total").values()) >= generated + 9
        ),
        "tokens are generated",
    )
    call.leave()
    wait_for(lambda: engine_is_idle(stack), "idle after")
    wait_for(lambda: usage(stack, slug)[0] == 1, "one row")
    emitted = sum(metrics(stack, "evenhand_engine_generation_tokens_total").values()) - generated
    assert usage(stack, slug) == (1, 20, emitted)
