"""Every bad request gets its status and OpenAI's error object, and takes nothing from anybody."""

import asyncio
import io
import json

import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MODEL = "smollm2-135m"


def chat(**fields):
    return json.dumps({"model": MODEL, "messages": HELLO} | fields).encode()


def text(**fields):
    return json.dumps({"model": MODEL, "prompt": "Hello"} | fields).encode()


BODIES = {
    "broken json": (CHAT, b'{"model": ', 400, None, None),
    "empty": (CHAT, b"", 400, None, None),
    "array": (CHAT, b"[]", 400, None, None),
    "duplicate keys": (CHAT, b'{"model":"x","model":"y"}', 400, None, None),
    "NaN": (CHAT, chat(temperature=float("nan")), 400, None, None),
    "NUL": (CHAT, chat(messages=[{"role": "user", "content": "a\0b"}]), 400, None, None),
    "surrogate": (CHAT, rb'{"model":"\ud800"}', 400, None, None),
    "deep": (CHAT, b'{"a":' * 2000 + b"1" + b"}" * 2000, 400, None, None),
    "unknown model": (CHAT, chat(model="gpt-9"), 404, "model_not_found", "model"),
    "no messages": (CHAT, chat(messages=[]), 400, "invalid_value", "messages"),
    "unknown field": (CHAT, chat(nope=1), 400, "unknown_parameter", "nope"),
    "cache_salt": (CHAT, chat(cache_salt="x"), 400, "unknown_parameter", "cache_salt"),
    "priority": (TEXT, text(priority=1), 400, "unknown_parameter", "priority"),
    "n": (CHAT, chat(n=10**9), 400, "invalid_value", "n"),
    "temperature": (CHAT, chat(temperature=-1), 400, "invalid_value", "temperature"),
    "output limit": (CHAT, chat(max_tokens=513), 400, "invalid_value", "max_tokens"),
    "newer name": (
        CHAT,
        chat(max_completion_tokens=513),
        400,
        "invalid_value",
        "max_completion_tokens",
    ),
    "context": (TEXT, text(prompt=[7] * 9_000), 400, "context_length_exceeded", "prompt"),
    "prompt limit": (TEXT, text(prompt=[7] * 2_049), 400, "context_length_exceeded", "prompt"),
    "long messages": (
        CHAT,
        chat(messages=[{"role": "user", "content": "word " * 9_000}]),
        400,
        "context_length_exceeded",
        "messages",
    ),
    "hopelessly long": (
        TEXT,
        text(prompt=" " * 2_000_000),
        400,
        "context_length_exceeded",
        "prompt",
    ),
    "token id": (TEXT, text(prompt=[10**6]), 400, "invalid_value", "prompt"),
    "empty prompt": (TEXT, text(prompt=""), 400, "invalid_value", "prompt"),
    "big body": (CHAT, b" " * 10_000_000, 413, "request_too_large", None),
}


def assert_error(status, headers, body, expected, code, param=None):
    assert status == expected, body
    error = body["error"]
    assert set(body) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert headers["x-request-id"].startswith("req_")
    assert headers["content-type"] == "application/json"


async def test_bad_bodies(gateway):
    client = gateway.client()
    for name, (path, body, status, code, param) in BODIES.items():
        async with client.post(path, data=io.BytesIO(body)) as reply:
            answer = await reply.json()
            assert_error(reply.status, reply.headers, answer, status, code, param), name
    assert gateway.upstream.requests == []
    async with client.post(CHAT, data=chat()) as good:
        assert good.status == 200
        assert good.headers["x-ratelimit-remaining-requests"] == "599"
    assert len(await gateway.usage()) == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_supported"),
        ("DELETE", "/v1/models", 405, "method_not_supported"),
        ("POST", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/metrics", 404, "unknown_url"),
        ("GET", "/capacity", 404, "unknown_url"),
        ("POST", "/abort/x", 404, "unknown_url"),
        ("POST", "/tokenize", 404, "unknown_url"),
        ("POST", "/prefix/pin", 404, "unknown_url"),
        ("POST", "/cache/erase", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("BREW", "/v1/models", 400, None),
    ],
)
async def test_wrong_paths_and_methods(gateway, method, path, status, code):
    async with gateway.client().request(method, path) as reply:
        param = "model" if code == "model_not_found" else None
        assert_error(reply.status, reply.headers, await reply.json(), status, code, param)


async def raw(gateway, request):
    host, _, port = gateway.url.removeprefix("http://").removesuffix("/v1").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nbad\0: 1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", 400),
        (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n"
                b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            400,
        ),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n"
                b"content-length: 6\r\n\r\nhello!"
            ),
            400,
        ),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\nbig: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 80 + b"\r\n", 431),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", 431),
    ],
)
async def test_malformed_http(gateway, request_bytes, status):
    received = await raw(gateway, request_bytes)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.split()[1] == b"%d" % status, received
    assert b"x-request-id: req_" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


async def test_the_host_header_decides_nothing(gateway):
    for host in (b"x/health?", b"x/#", b"", b"evil\\health"):
        request = b"GET /v1/models HTTP/1.1\r\nhost: " + host + b"\r\nconnection: close\r\n\r\n"
        assert (await raw(gateway, request)).split()[1] in {b"401", b"400"}
    doubled = b"GET //v1/models HTTP/1.1\r\nhost: y\r\nconnection: close\r\n\r\n"
    assert (await raw(gateway, doubled)).split()[1] == b"404"
    absolute = b"GET http://x/v1/models HTTP/1.1\r\nhost: y\r\nconnection: close\r\n\r\n"
    assert (await raw(gateway, absolute)).split()[1] == b"401"


async def test_credentials(gateway):
    good = f"Bearer {gateway.key}"
    cases = [
        ({}, 401, None),
        ({"authorization": gateway.key}, 401, None),
        ({"authorization": "Basic " + gateway.key}, 401, None),
        ({"x-api-key": gateway.key}, 401, None),
        ({"authorization": "Bearer "}, 401, "invalid_api_key"),
        ({"authorization": "Bearer nonsense"}, 401, "invalid_api_key"),
        ({"authorization": "Bearer eh_'; DROP TABLE tenants; --"}, 401, "invalid_api_key"),
        ({"authorization": good[:-1]}, 401, "invalid_api_key"),
        ({"authorization": good, "x-api-key": "other"}, 400, None),
        ({"authorization": good, "api-key": "other"}, 400, None),
        ([("authorization", good), ("authorization", good)], 400, None),
    ]
    client = gateway.client("")
    client.headers.clear()
    bodies = set()
    for headers, status, code in cases:
        async with client.post(CHAT, data=chat(), headers=headers) as reply:
            answer = await reply.json()
            assert_error(reply.status, reply.headers, answer, status, code)
            assert gateway.key not in json.dumps(answer)
            if code == "invalid_api_key":
                bodies.add(json.dumps(answer))
    assert len(bodies) == 1, "no answer tells one kind of bad key from another"


async def test_identity_headers_are_stripped_and_counted(gateway):
    headers = {"x-tenant-id": "someone-else", "x-gateway-inference-fairness-id": "me"}
    async with gateway.client().post(CHAT, data=chat(), headers=headers) as reply:
        assert reply.status == 200
    assert "someone-else" not in json.dumps(gateway.upstream.headers)
    read = await gateway.metrics()
    assert read['evenhand_stripped_headers_total{header="x-tenant-id"}'] == 1


async def test_a_prompt_that_fits_no_replica(make_gateway):
    async with make_gateway() as gateway:
        gateway.upstream.script.kv_tokens = 64
        await gateway.eventually(lambda: _is_refused(gateway))
        async with gateway.client().post(TEXT, data=text(prompt=[7] * 64)) as reply:
            code = (await reply.json())["error"]["code"]
            assert (reply.status, code) == (400, "context_length_exceeded")
        async with gateway.client().post(TEXT, data=text(prompt=[7] * 40)) as reply:
            assert reply.status == 200


async def _is_refused(gateway):
    async with gateway.client().post(TEXT, data=text(prompt=[7] * 64, max_tokens=1)) as reply:
        return reply.status == 400
