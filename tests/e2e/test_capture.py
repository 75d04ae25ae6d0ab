"""What reaches the engine: every request with its tenant's namespace, and no other way in."""

import asyncio
import contextlib
import json
import re
import subprocess

import aiohttp
import openai
import pytest

from tests.support import stack as product
from tests.support.relay import Relay

HELLO = [{"role": "user", "content": "Hi"}]


@contextlib.contextmanager
def process(*arguments, **environment):
    running = subprocess.Popen(
        [*product.EVENHAND, *arguments],
        cwd=product.ROOT,
        env=product.clean_environment(**environment),
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        try:
            yield running
        finally:
            running.terminate()
            assert running.wait(60) == 0


@pytest.fixture(scope="module")
def captured(tmp_path_factory, smollm2):
    """A gateway and an engine, each started alone, with a relay between them."""
    folder = tmp_path_factory.mktemp("capture")
    data = {"EVENHAND_DATA_DIR": str(folder / "data")}
    for arguments in (
        ["migrate"],
        ["admin", "tenant", "create", "a"],
        ["admin", "tenant", "create", "b"],
    ):
        assert product.run_cli(*arguments, **data).returncode == 0
    keys = {
        slug: json.loads(
            product.run_cli("admin", "key", "create", "--tenant", slug, "--json", **data).stdout
        )["key"]
        for slug in ("a", "b")
    }
    engine_socket, relay_socket = folder / "engine.sock", folder / "relay.sock"
    with process("engine", "--uds", str(engine_socket), "--model", str(smollm2)) as engine:
        assert engine.stdout.readline().startswith("ready: ")
        relay = Relay(relay_socket, engine_socket)
        ports = ("--port", "0", "--admin-port", "0", "--json")
        gateway = ("gateway", "--engine", str(relay_socket), "--model", str(smollm2), *ports)
        with process(*gateway, **data) as running:
            yield relay, keys, engine_socket, json.loads(running.stdout.readline())["url"]
        relay.close()


def test_every_request_carries_its_tenants_namespace(captured):
    relay, keys, _, url = captured
    callers = {}  # seed: tenant; connections are reused, so bodies come in no order of time
    for slug in ("a", "b", "a"):
        with openai.OpenAI(base_url=url, api_key=keys[slug]) as client:
            model = client.models.list().data[0].id
            for ask in (
                lambda **asked: client.completions.create(prompt="Hello", **asked),
                lambda **asked: client.chat.completions.create(messages=HELLO, **asked),
                lambda **asked: list(
                    client.completions.create(prompt="Hello", stream=True, **asked)
                ),
            ):
                seed = len(callers)
                callers[seed] = slug
                ask(model=model, max_tokens=1, seed=seed)
    bodies = relay.requests("/v1/completions")
    assert sorted(body["seed"] for body in bodies) == sorted(callers)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", body["cache_salt"]) for body in bodies)
    salts = {slug: set() for slug in keys}
    for body in bodies:
        salts[callers[body["seed"]]].add(body["cache_salt"])
    assert len(salts["a"]) == len(salts["b"]) == 1
    assert salts["a"] != salts["b"]
    assert relay.requests("/v1/chat/completions") == []


def test_the_engine_refuses_a_request_without_a_namespace(captured):
    _, _, engine_socket, _ = captured

    async def ask(**fields):
        connector = aiohttp.UnixConnector(str(engine_socket))
        async with aiohttp.ClientSession(connector=connector) as http:
            body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1} | fields
            async with http.post("http://engine/v1/completions", json=body) as answer:
                return answer.status, await answer.json()

    for fields in ({}, {"cache_salt": ""}, {"cache_salt": "A" * 42}, {"cache_salt": "!" * 43}):
        status, answer = asyncio.run(ask(**fields))
        assert status == 400
        assert answer["error"]["param"] == "cache_salt"


def test_only_the_owner_can_reach_the_engine(captured):
    _, _, engine_socket, _ = captured
    assert engine_socket.stat().st_mode & 0o777 == 0o600
