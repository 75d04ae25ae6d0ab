"""What goes wrong stays with the request it happened to, and says nothing of the inside."""

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import pytest

from engine.protocol.text.detokenizer import Detokenizer
from engine.server import loop
from engine.server.loop import STALLED_STEPS
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


def exchange(path: Path, head: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer. The server may answer and close before it was told all."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: e\r\n" + head + b"\r\n")
            connection.sendall(body)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while received := connection.recv(65_536):
                answer += received
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


async def test_bodies_over_the_cap(engine):
    big = b'{"prompt": "' + b"x" * (2 * 1024 * 1024) + b'"}'
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big)
    for head, body in (
        (b"content-length: %d\r\n" % len(big), big),
        (b"content-length: %d\r\n" % len(big), b""),
        (b"transfer-encoding: chunked\r\n", chunked),
    ):
        status, answer = await asyncio.to_thread(exchange, engine.path, head, body)
        assert status.startswith(b"HTTP/1.1 413")
        assert json.loads(answer)["error"]["code"] == "request_too_large"


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
        ({"logit_bias": {str(text_model.vocab_size): 1}}, "invalid_value", "logit_bias"),
        ({"allowed_token_ids": [text_model.vocab_size]}, "invalid_value", "allowed_token_ids"),
        (
            {"allowed_token_ids": [*text_model.eos_token_ids], "min_tokens": 1},
            "invalid_value",
            "allowed_token_ids",
        ),
        ({"min_tokens": 2, "max_tokens": 1}, "invalid_value", "min_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "invalid_value", "prompt_logprobs"),
    ]
    for fields, code, param in cases:
        async with await client.post("/v1/completions", completion("x") | fields) as response:
            error = await error_of(response, 404 if code == "model_not_found" else 400)
        assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize("asked", [7, None])
async def test_e4_a_prompt_too_long_is_told_every_number(client, asked):
    payload = completion("x" * 600) | ({} if asked is None else {"max_tokens": asked})
    async with await client.post("/v1/completions", payload) as response:
        error = await error_of(response, 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "at most 512 tokens" in error["message"]
    assert "the prompt has 600" in error["message"]
    assert ("7 more" if asked else "as long as fits") in error["message"]


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


async def solo_texts(client, prompts):
    return [(await client.completion(prompt))[1]["choices"][0]["text"] for prompt in prompts]


@pytest.mark.parametrize("hook", ["admit", "schedule", "execute", "sample", "detokenize"])
async def test_a_fault_at_any_hook_is_one_requests_alone(engine, client, monkeypatch, hook):
    """The others of the same step say what they say alone; blocks and health are as before."""
    prompts = [echo(f"neighbour {i} says this") for i in range(4)]
    alone = await solo_texts(client, prompts)
    fail_at(hook, engine, monkeypatch)
    engine.runner.hold()
    tasks = [asyncio.create_task(client.completion(prompt)) for prompt in prompts]
    doomed = asyncio.create_task(client.completion(echo("ab!cd"), request_id="doomed"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    await until(lambda: engine.engine.service._places.samples == 5)
    engine.runner.let_go()
    status, body = await doomed
    assert (status, body["error"]["type"]) == (500, "server_error")
    assert "canary" not in json.dumps(body)
    answers = [await task for task in tasks]
    assert [answer["choices"][0]["text"] for _, answer in answers] == alone
    metric = f'evenhand_engine_request_errors_total{{hook="{hook}"}}'
    assert await client.metric(metric) == 1
    await until(lambda: engine.engine.service.loop.snapshot.stats.held_blocks == 0)
    engine.core.check_integrity()
    assert await client.get("/health") == {"status": "ok"}


def fail_at(hook, engine, monkeypatch):
    """Make the hook raise for the request `doomed`, from its third token on where it has tokens."""
    core = engine.core
    if hook == "admit":
        raise_for_doomed(monkeypatch, core._scheduler, "add")
    elif hook == "schedule":
        raise_for_doomed(monkeypatch, core._kv_cache, "extend")
    elif hook == "execute":
        engine.runner.poisoned = {"doomed"}
    elif hook == "sample":
        engine.runner.unsampled = {"doomed"}
    else:
        push = Detokenizer.push
        poison = engine.engine.service.text.encode("!")[0]

        def fragile(self, token_id):
            if token_id == poison:
                raise ValueError("canary")
            return push(self, token_id)

        monkeypatch.setattr(Detokenizer, "push", fragile)


def raise_for_doomed(monkeypatch, owner, name):
    real = getattr(owner, name)

    def fragile(request, *rest):
        if request.request_id == "doomed":
            raise ValueError("canary")
        return real(request, *rest)

    monkeypatch.setattr(owner, name, fragile)


async def test_a_stalled_engine_says_so_and_recovers(engine, client, monkeypatch):
    admit = engine.core._kv_cache.admit
    monkeypatch.setattr(engine.core._kv_cache, "admit", lambda *_: False)
    waiting = asyncio.create_task(client.completion(echo("late")))
    await until(lambda: engine.engine.service.loop.snapshot.stalled)
    async with client.session.get("http://engine/health") as response:
        assert (await error_of(response, 503))["code"] == "engine_stalled"
    assert await client.metric("evenhand_engine_no_progress_steps_total") >= STALLED_STEPS
    assert await client.metric("evenhand_engine_requests_waiting") == 1
    monkeypatch.setattr(engine.core._kv_cache, "admit", admit)
    status, body = await waiting
    assert (status, body["choices"][0]["text"]) == (200, "late")
    assert await client.get("/health") == {"status": "ok"}


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


async def test_an_idle_engine_whose_blocks_do_not_add_up_serves_no_more(
    engine, client, monkeypatch
):
    monkeypatch.setattr(loop, "IDLE_CHECK_S", 0.01)
    free = engine.core._kv_cache.pool._free
    await client.completion(echo("x"))
    await asyncio.sleep(0.1)
    assert (await client.get("/health"))["status"] == "ok"
    lost = free.pop()
    await client.post("/abort/nobody", {})
    await until(lambda: not engine.engine.service.loop.alive)
    free.append(lost)
    async with client.session.get("http://engine/health") as response:
        assert (await error_of(response, 503))["code"] == "engine_dead"
    assert await client.metric('evenhand_engine_request_errors_total{hook="loop"}') == 1


async def test_a_fault_in_a_route_is_a_plain_500(engine, client, monkeypatch):
    monkeypatch.setattr(type(engine.engine.service), "capacity", lambda _: 1 / 0)
    async with client.session.get("http://engine/capacity") as response:
        error = await error_of(response, 500)
    assert "division" not in error["message"]
    assert await client.get("/v1/models")
    assert (await client.completion(echo("ok"), model=MODEL))[0] == 200
