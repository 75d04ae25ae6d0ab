"""Done-when 8: two thousand hostile or random bodies, and the engine is as it was.

The bodies are mutations of valid ones over every field of every route, and what no parser should
take: broken JSON, huge numbers, deep nesting, duplicate keys, wrong content.
"""

import asyncio
import json
import random
import string
from collections import Counter

from engine.protocol import wire
from engine.protocol.wire import Audience
from tests.engine.server.conftest import MODEL, OTHER_SALT, SALT, chat, completion, echo
from tests.engine.server.test_drain import engine_process, model_folder  # noqa: F401 - a fixture

NUM_BODIES = 2000
WORKERS = 4

ROUTES = {
    "/v1/completions": (completion("x", max_tokens=2), wire._COMPLETION[Audience.ENGINE]),
    "/v1/chat/completions": (chat("x", max_tokens=2), wire._CHAT[Audience.ENGINE]),
    "/tokenize": ({"model": MODEL, "prompt": "x"}, wire._TOKENIZE),
    "/prefix/pin": (
        {"model": MODEL, "cache_salt": SALT, "prompt": "x" * 40, "pinned": True},
        wire._PIN,
    ),
    "/cache/erase": ({"cache_salt": SALT}, wire._ERASE),
}
NASTY = [
    *(None, True, False, 0, -1, 1, 2, 8, 9, 21, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e308),
    *(
        "",
        "x",
        "on",
        "off",
        "none",
        "\x00",
        "ÿ" * 300,
        "a" * 5000,
        "<|im_end|>",
        "1",
        "-1",
        "\u2028",
    ),
    *([], [[]], [""], ["x"], ["x"] * 300, [1], [1, 2, 3], [-1], [2**40], [None], [True], [[1]]),
    *([1] * 5000, [257], [258], {}, {"x": 1}, {"1": 1}, {"1": 101}, {"99999": 1}, {"1": None}),
    *({str(i): 0 for i in range(400)}, {"type": "text"}, {"include_usage": True}),
    *([{}], [{"role": "user"}], [{"role": "user", "content": None}]),
    *([{"role": "system", "content": "x"}], [{"role": "user", "content": [{"type": "text"}]}]),
    *([{"role": "user", "content": "x", "name": 3}], [{"role": "user", "content": "y" * 3000}]),
]
RAW = [
    *(b"", b"null", b"[]", b'"x"', b"1", b"{", b'{"model"', b"{}}", b"\xff\xfe", b"[" * 5000),
    *(
        b'{"a":' * 5000,
        b'{"model":NaN}',
        b'{"n":1e999}',
        b'{"n":-Infinity}',
        b'{"n":' + b"9" * 9000,
    ),
    *(b'{"model":"\\ud800"}', b'{"model":"\\u0000"}', b'{"model":1,"model":2}', b"\x00" * 64),
    b'{"prompt":[' + b"1," * 70_000 + b"1]}",
]


def random_text(rng):
    return "".join(rng.choices(string.printable + "é€\U0001f600", k=rng.randrange(40)))


def mutated(rng, good, table):
    """A body of the route with one to three members changed, added or taken away."""
    body = dict(good)
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice([*table, *table, *body, random_text(rng)])
        if rng.random() < 0.1:
            body.pop(name, None)
        else:
            body[name] = rng.choice(
                [*NASTY, random_text(rng), rng.randrange(-5, 300), rng.random()]
            )
    return json.dumps(body).encode()


def hostile(rng, good, table):
    """One body, as bytes."""
    kind = rng.random()
    if kind < 0.75:
        return mutated(rng, good, table)
    text = bytearray(json.dumps(good).encode())
    if kind < 0.8:
        return bytes(text[: rng.randrange(len(text))])
    if kind < 0.9:  # a few bytes are wrong
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        return bytes(text)
    if kind < 0.95:
        return rng.randbytes(rng.randrange(200))
    return rng.choice(RAW)


def bodies(seed=20):
    rng = random.Random(seed)
    for _ in range(NUM_BODIES):
        path = rng.choice([*ROUTES, "/v1/completions", "/v1/chat/completions"])
        yield path, hostile(rng, *ROUTES[path])


async def send_all(client, source, statuses):
    for path, body in source:
        async with client.session.post(f"http://engine{path}", data=body) as response:
            answer = await response.read()
            assert response.status == 200 or 400 <= response.status < 500, (path, body, answer)
            if response.status != 200:
                assert set(json.loads(answer)) == {"error"}, (path, body, answer)
            statuses[response.status] += 1


async def kv_tokens(client):
    """After the namespaces that valid bodies name are empty again."""
    for salt in (SALT, OTHER_SALT):
        (await client.post("/cache/erase", {"cache_salt": salt})).release()
    return (await client.get("/capacity"))["kv_tokens"]


async def test_two_thousand_hostile_bodies_leave_the_engine_as_it_was(model_folder):  # noqa: F811
    async with engine_process(model_folder, 5, 0) as (process, client, _):
        assert (await client.completion(echo("before")))[0] == 200
        before = await kv_tokens(client)
        source, statuses = bodies(), Counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(send_all(client, source, statuses))
        assert statuses.total() == NUM_BODIES
        assert statuses[200] < NUM_BODIES / 3
        assert process.returncode is None  # the very process that was asked first
        assert await client.get("/health") == {"status": "ok"}
        _, body = await client.completion(echo("after"))
        assert body["choices"][0]["text"] == "after"
        assert await kv_tokens(client) == before
        for hook in ("execute", "sample", "admit", "detokenize", "http"):
            metrics = await client.get("/metrics")
            assert f'errors_total{{hook="{hook}"}}' not in metrics
