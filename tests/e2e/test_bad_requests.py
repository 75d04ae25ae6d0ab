"""Bad requests: each its status and OpenAI's error object, and the next good request is served."""

import json

import pytest

from tests.support import http

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields):
    return json.dumps({"model": "MODEL", "messages": HELLO} | fields).encode()


def text(**fields):
    return json.dumps({"model": "MODEL", "prompt": "Hello"} | fields).encode()


# name: (path, body, status, code, param)
BODIES = {
    "broken json": (CHAT, b'{"model": ', 400, None, None),
    "no body": (CHAT, b"", 400, None, None),
    "an array": (CHAT, b"[]", 400, None, None),
    "a string": (CHAT, b'"hello"', 400, None, None),
    "null": (CHAT, b"null", 400, None, None),
    "duplicate keys": (CHAT, b'{"model":"MODEL","model":"x","messages":[]}', 400, None, None),
    "NaN": (CHAT, chat(temperature=float("nan")), 400, None, None),
    "Infinity": (CHAT, chat(temperature=float("inf")), 400, None, None),
    "NUL": (CHAT, chat(messages=[{"role": "user", "content": "a\0b"}]), 400, None, None),
    "a lone surrogate": (CHAT, rb'{"model":"MODEL","messages":[{"role":"user","content":"\ud800"}]}', 400, None, None),
    "invalid UTF-8": (CHAT, b'{"model":"MODEL\xff"}', 400, None, None),
    "nested 2,000 deep": (CHAT, b'{"a":' * 2000 + b"1" + b"}" * 2000, 400, None, None),
    "nested arrays": (CHAT, b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None, None),
    "a huge integer": (CHAT, b'{"model":"MODEL","messages":[],"seed":' + b"9" * 5000 + b"}", 400, None, None),
    "no model": (CHAT, json.dumps({"messages": HELLO}).encode(), 400, "missing_required_parameter", "model"),
    "model of a wrong type": (CHAT, chat(model=7), 400, "invalid_type", "model"),
    "unknown model": (CHAT, chat(model="gpt-9"), 404, "model_not_found", "model"),
    "no messages": (CHAT, b'{"model":"MODEL"}', 400, "missing_required_parameter", "messages"),
    "empty messages": (CHAT, chat(messages=[]), 400, "invalid_value", "messages"),
    "messages not a list": (CHAT, chat(messages="hi"), 400, "invalid_type", "messages"),
    "a message not an object": (CHAT, chat(messages=["hi"]), 400, "invalid_type", "messages[0]"),
    "an unknown role": (CHAT, chat(messages=[{"role": "king", "content": "x"}]), 400, "invalid_value", "messages[0].role"),
    "content of a wrong type": (CHAT, chat(messages=[{"role": "user", "content": 3}]), 400, "invalid_type", "messages[0].content"),
    "an image": (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), 400, "unsupported_parameter", "messages[0].content[0].type"),
    "tools": (CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "unsupported_parameter", "tools"),
    "a JSON response format": (CHAT, chat(response_format={"type": "json_object"}), 400, "unsupported_parameter", "response_format"),
    "unknown field": (CHAT, chat(nope=1), 400, "unknown_parameter", "nope"),
    "cache_salt": (CHAT, chat(cache_salt="x"), 400, "unknown_parameter", "cache_salt"),
    "priority": (TEXT, text(priority=1), 400, "unknown_parameter", "priority"),
    "kv_transfer_params": (TEXT, text(kv_transfer_params={}), 400, "unknown_parameter", "kv_transfer_params"),
    "vllm_xargs": (TEXT, text(vllm_xargs={}), 400, "unknown_parameter", "vllm_xargs"),
    "n = 0": (CHAT, chat(n=0), 400, "invalid_value", "n"),
    "n = 10^9": (CHAT, chat(n=10**9), 400, "invalid_value", "n"),
    "n = true": (CHAT, chat(n=True), 400, "invalid_type", "n"),
    "temperature -1": (CHAT, chat(temperature=-1), 400, "invalid_value", "temperature"),
    "temperature a string": (CHAT, chat(temperature="hot"), 400, "invalid_type", "temperature"),
    "top_p 2": (CHAT, chat(top_p=2), 400, "invalid_value", "top_p"),
    "max_tokens 0": (CHAT, chat(max_tokens=0), 400, "invalid_value", "max_tokens"),
    "max_tokens 1.5": (CHAT, chat(max_tokens=1.5), 400, "invalid_type", "max_tokens"),
    "max_tokens over the limit": (CHAT, chat(max_tokens=100_000), 400, "invalid_value", "max_tokens"),
    "100 stop strings": (CHAT, chat(stop=["x"] * 100), 400, "invalid_value", "stop"),
    "an empty stop string": (CHAT, chat(stop=[""]), 400, "invalid_value", "stop[0]"),
    "stream a string": (CHAT, chat(stream="yes"), 400, "invalid_type", "stream"),
    "stream_options without stream": (CHAT, chat(stream_options={"include_usage": True}), 400, "invalid_value", "stream_options"),
    "n = 9": (TEXT, text(n=9), 400, "invalid_value", "n"),
    "n over the concurrency": (TEXT, text(n=8), 400, "invalid_value", "n"),
    "best_of without n": (TEXT, text(best_of=2), 400, "unsupported_parameter", "best_of"),
    "logit_bias a list": (CHAT, chat(logit_bias=[1, 2]), 400, "invalid_type", "logit_bias"),
    "logit_bias of a word": (CHAT, chat(logit_bias={"cat": 5}), 400, "invalid_value", "logit_bias.cat"),
    "logit_bias of an unknown id": (CHAT, chat(logit_bias={"10000000": 5}), 400, "invalid_value", "logit_bias.10000000"),
    "logit_bias over 100": (TEXT, text(logit_bias={"1": 100.5}), 400, "invalid_value", "logit_bias.1"),
    "logit_bias of NaN": (TEXT, text(logit_bias={"1": float("nan")}), 400, None, None),
    "301 entries of logit_bias": (TEXT, text(logit_bias={str(i): 1 for i in range(301)}), 400, "invalid_value", "logit_bias"),
    "presence_penalty NaN": (CHAT, chat(presence_penalty=float("nan")), 400, None, None),
    "presence_penalty 3": (CHAT, chat(presence_penalty=3), 400, "invalid_value", "presence_penalty"),
    "frequency_penalty a string": (TEXT, text(frequency_penalty="1"), 400, "invalid_type", "frequency_penalty"),
    "logprobs a number in a chat": (CHAT, chat(logprobs=3), 400, "invalid_type", "logprobs"),
    "logprobs true in a completion": (TEXT, text(logprobs=True), 400, "invalid_type", "logprobs"),
    "logprobs 6": (TEXT, text(logprobs=6), 400, "invalid_value", "logprobs"),
    "top_logprobs 21": (CHAT, chat(logprobs=True, top_logprobs=21), 400, "invalid_value", "top_logprobs"),
    "top_logprobs alone": (CHAT, chat(top_logprobs=1), 400, "invalid_value", "top_logprobs"),
    "echo 1": (TEXT, text(echo=1), 400, "invalid_type", "echo"),
    "min_p": (TEXT, text(min_p=0.1), 400, "unknown_parameter", "min_p"),
    "prompt_logprobs": (TEXT, text(prompt_logprobs=1), 400, "unknown_parameter", "prompt_logprobs"),
    "cache maybe": (CHAT, chat(cache="maybe"), 400, "invalid_value", "cache"),
    "cache_scope too long": (CHAT, chat(cache_scope="x" * 129), 400, "invalid_value", "cache_scope"),
    "prompt over the context": (TEXT, text(prompt=[7] * 9_000), 400, "context_length_exceeded", "prompt"),
    "messages over the context": (CHAT, chat(messages=[{"role": "user", "content": "word " * 9_000}]), 400, "context_length_exceeded", "messages"),
    "a token id out of range": (TEXT, text(prompt=[10**6]), 400, "invalid_value", "prompt"),
    "an empty prompt": (TEXT, text(prompt=""), 400, "invalid_value", "prompt"),
    "prompt of a wrong type": (TEXT, text(prompt={"a": 1}), 400, "invalid_type", "prompt"),
    "a 10 MB body": (CHAT, chat(messages=[{"role": "user", "content": "x" * 10_000_000}]), 413, "request_too_large", None),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(stack):
    listed = ask(stack, "GET", "/v1/models", authorization(stack.key))
    return listed.json()["data"][0]["id"]


def authorization(key):
    return {"authorization": f"Bearer {key}"}


def ask(stack, method, path, headers, body=b""):
    if body:
        headers = {"content-type": "application/json"} | headers
    return http.send(stack.url, http.request_bytes(method, path, headers, body))


def assert_error(answer, status, code, param=None):
    assert answer.status == status, answer.body[:300]
    assert answer.headers["x-request-id"]
    assert answer.headers["content-type"].startswith("application/json")
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    assert error["param"] == param, error
    assert isinstance(error["message"], str)
    assert len(error["message"]) < 500


@pytest.fixture(autouse=True)
def the_next_good_request_is_served(stack, model):
    yield
    good = ask(
        stack,
        "POST",
        TEXT,
        authorization(stack.key),
        text(model=model, max_tokens=1, temperature=0),
    )
    assert good.status == 200, good.body


@pytest.fixture(scope="module", autouse=True)
def plenty(stack):
    """Bad requests must be refused for what is wrong with them, not for their number."""
    stack.admin("quota", "set", "--tenant", "default", "--rpm", "100000", "--tpm", "100000000")


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body(stack, model, name):
    path, body, status, code, param = BODIES[name]
    body = body.replace(b"MODEL", model.encode())
    assert_error(ask(stack, "POST", path, authorization(stack.key), body), status, code, param)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_supported"),
        ("DELETE", "/v1/models", 405, "method_not_supported"),
        ("POST", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/metrics", 404, "unknown_url"),
        ("GET", "/docs", 404, "unknown_url"),
        ("POST", "/prefix/pin", 404, "unknown_url"),
        ("POST", "/cache/erase", 404, "unknown_url"),
        ("GET", "/v1/models/none", 404, "model_not_found"),
    ],
)
def test_a_wrong_method_or_path(stack, method, path, status, code):
    answer = ask(stack, method, path, authorization(stack.key))
    param = "model" if code == "model_not_found" else None
    assert_error(answer, status, code, param)


def test_bad_credentials(stack, model):
    good = stack.key
    revoked = stack.new_key("bad-credentials")
    [listed] = stack.admin("key", "list", "--tenant", "bad-credentials")
    stack.admin("key", "revoke", listed["id"])
    unknown = good[:8] + ("B" if good[8] != "B" else "C") + good[9:]
    body = text(model=model, max_tokens=1)
    for headers, status in [
        ({}, 401),
        ({"authorization": good}, 401),
        ({"authorization": "Basic " + good}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer nonsense"}, 401),
        (authorization(unknown), 401),
        (authorization("eh_'; DROP TABLE tenants; --"), 401),
        (authorization(good) | {"x-api-key": "other"}, 400),
        (authorization(good) | {"Authorization": f"Bearer {unknown}"}, 400),
    ]:
        answer = ask(stack, "POST", TEXT, headers, body)
        assert answer.status == status, (headers.keys(), answer.body)
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert good not in answer.body.decode()
    wait_until_refused(stack, revoked, body)


def wait_until_refused(stack, key, body):
    for _ in range(200):
        answer = ask(stack, "POST", TEXT, authorization(key), body)
        if answer.status == 401:
            assert_error(answer, 401, "invalid_api_key")
            return
    raise AssertionError("a revoked key is still accepted")


@pytest.mark.parametrize(
    "raw",
    [
        b"NONSENSE\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nbad\0header: 1\r\nconnection: close\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello!",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nbig: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["no HTTP", "NUL in a header", "two lengths", "a giant header"],
)
def test_malformed_http_gets_an_error_object(stack, raw):
    answer = http.send(stack.url, raw)
    assert 400 <= answer.status < 500
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
