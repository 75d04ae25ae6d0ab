"""What goes wrong stays with the request it happened to, and says nothing of the inside."""

import asyncio
import io
import json
import random
import string

import pytest

from engine.protocol.text.detokenizer import Detokenizer
from tests.engine.server.conftest import MODEL, SALT, completion, echo, until


def without(payload, name):
    return {key: value for key, value in payload.items() if key != name}


async def error_of(response, status):
    assert response.status == status, await response.text()
    assert response.content_type == "application/json"
    error = (await response.json())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    "salt", [None, "", "A" * 42, "A" * 44, "A" * 42 + "!", "A" * 42 + "\n", 43, ["A" * 43]]
)
async def test_a_request_without_a_whole_namespace_is_refused(client, salt):
    payload = completion("x")
    for bad in (payload | {"cache_salt": salt}, without(payload, "cache_salt")):
        async with await client.post("/v1/completions", bad) as response:
            error = await error_of(response, 400)
        assert error["param"] == "cache_salt"
        assert SALT not in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nope", 404, "unknown_url"),
        ("POST", "/v1/completions/", 404, "unknown_url"),
        ("GET", "/v1/completions", 405, "method_not_supported"),
        ("DELETE", "/capacity", 405, "method_not_supported"),
        ("GET", "/docs", 404, "unknown_url"),
        ("GET", "/openapi.json", 404, "unknown_url"),
        ("POST", "/abort", 404, "unknown_url"),
    ],
)
async def test_unknown_routes_and_methods(client, method, path, status, code):
    async with client.session.request(method, f"http://engine{path}") as response:
        assert (await error_of(response, status))["code"] == code


async def test_bodies_over_the_cap(client):
    big = b'{"prompt": "' + b"x" * (2 * 1024 * 1024) + b'"}'

    async def chunks():
        yield big

    for data in (io.BytesIO(big), chunks()):
        async with client.session.post("http://engine/v1/completions", data=data) as response:
            assert (await error_of(response, 413))["code"] == "request_too_large"


async def test_what_is_not_http_gets_an_error_object(engine):
    reader, writer = await asyncio.open_unix_connection(str(engine.path))
    writer.write(b"GET /health HTTP/1.1\r\nhost: e\r\nx: a\x00b\r\n\r\n")
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_wrong_fields_name_themselves(client, text_model):
    cases = [
        ({"nope": 1}, "unknown_parameter", "nope"),
        ({"temperature": -1}, "invalid_value", "temperature"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"prompt": ""}, "invalid_value", "prompt"),
        ({"prompt": [text_model.vocab_size]}, "invalid_value", "prompt"),
        ({"model": "other"}, "model_not_found", "model"),
        ({"request_id": "two words"}, "invalid_value", "request_id"),
    ]
    for fields, code, param in cases:
        async with await client.post("/v1/completions", completion("x") | fields) as response:
            error = await error_of(response, 404 if code == "model_not_found" else 400)
        assert (error["code"], error["param"]) == (code, param)


def hostile_bodies(seed=1, count=200):
    """Bodies that break in every way a parser or a field can, and some that are only noise."""
    rng = random.Random(seed)
    good = completion("x", max_tokens=1)
    values = [None, -1, 10**30, 1e308, [], {}, "", "\x00", [[]], True, "ÿ" * 300, [-1], [2**40]]
    for _ in range(count):
        kind = rng.randrange(6)
        if kind == 0:
            yield bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
        elif kind == 1:
            text = json.dumps(good).encode()
            yield text[: rng.randrange(len(text))]
        elif kind == 2:
            yield json.dumps(good | {rng.choice(list(good)): rng.choice(values)}).encode()
        elif kind == 3:
            yield b"[" * rng.randrange(1, 5000)
        elif kind == 4:
            name = "".join(rng.choices(string.printable, k=rng.randrange(1, 40)))
            yield json.dumps(good | {name: rng.choice(values)}).encode()
        else:
            yield b'{"cache_salt":"%b","model":%b}' % (
                SALT.encode(),
                rng.choice([b"NaN", b'"\\ud800"']),
            )


async def test_hostile_bodies_leave_the_engine_as_it_was(engine, client):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        for body in hostile_bodies():
            async with client.session.post(f"http://engine{path}", data=body) as response:
                assert response.status in {200, 400, 404}, (body, await response.text())
                if response.status != 200:
                    assert "error" in await response.json()
    assert (await client.completion(echo("still here")))[1]["choices"][0]["text"] == "still here"
    assert (await client.get("/capacity"))["kv_tokens"]["held"] == 0
    assert await client.get("/health") == {"status": "ok"}


async def test_a_failed_step_ends_its_requests_only(engine, client):
    engine.runner.failures = 1
    status, body = await client.completion(echo("doomed"))
    assert status == 500
    assert body["error"]["type"] == "server_error"
    assert not any(leak in json.dumps(body) for leak in ("canary", "0x", "passwd", "ValueError"))
    status, body = await client.completion(echo("fine"))
    assert (status, body["choices"][0]["text"]) == (200, "fine")
    assert await client.metric('evenhand_engine_request_errors_total{hook="execute"}') == 1
    assert await client.get("/health") == {"status": "ok"}


async def test_a_failed_step_mid_stream_is_an_error_event(engine, client):
    engine.runner.hold()
    engine.runner.permit(2)
    async with await client.post("/v1/completions", completion("a", stream=True)) as response:
        await response.content.readuntil(b"\n\n")
        engine.runner.failures = 1
        engine.runner.let_go()
        rest = await response.read()
    assert b'"type":"server_error"' in rest
    assert b"canary" not in rest
    assert not rest.rstrip().endswith(b"[DONE]")


async def test_text_that_fails_ends_one_request_and_spares_its_neighbour(
    engine, client, monkeypatch
):
    push = Detokenizer.push

    def fragile(self, token_id):
        if token_id == poison:
            raise ValueError("canary")
        return push(self, token_id)

    poison = engine.engine.service.text.encode("!")[0]
    monkeypatch.setattr(Detokenizer, "push", fragile)
    engine.runner.hold()
    both = [
        asyncio.create_task(client.completion(echo("abc!def"))),
        asyncio.create_task(client.completion(echo("neighbour"))),
    ]
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    engine.runner.let_go()
    (doomed, _), (fine, body) = await asyncio.gather(*both)
    assert (doomed, fine) == (500, 200)
    assert body["choices"][0]["text"] == "neighbour"
    assert await client.metric('evenhand_engine_request_errors_total{hook="detokenize"}') == 1
    await until(lambda: engine.engine.service.loop.snapshot.stats.held_blocks == 0)


async def test_a_dead_loop_fails_its_streams_and_health(engine, client, monkeypatch):
    def broken():
        raise RuntimeError("canary")

    engine.runner.hold()
    waiting = asyncio.create_task(client.completion("endless"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    monkeypatch.setattr(engine.core, "stats", broken)
    engine.runner.let_go()
    status, body = await waiting
    assert (status, body["error"]["code"]) == (503, "engine_dead")
    await until(lambda: not engine.engine.service.loop.alive)
    async with client.session.get("http://engine/health") as response:
        assert (await error_of(response, 503))["code"] == "engine_dead"
    status, body = await client.completion("x")
    assert (status, body["error"]["code"]) == (503, "engine_dead")
    engine.core.abort(next(iter(engine.core._scheduler.requests), ""))


async def test_a_fault_in_a_route_is_a_plain_500(engine, client, monkeypatch):
    monkeypatch.setattr(type(engine.engine.service), "capacity", lambda _: 1 / 0)
    async with client.session.get("http://engine/capacity") as response:
        error = await error_of(response, 500)
    assert "division" not in error["message"]
    assert await client.get("/v1/models")
    assert (await client.completion(echo("ok"), model=MODEL))[0] == 200
