"""Two tenants that never stop asking are served in proportion to their weights, live."""

import asyncio
import json
import os
import time

import aiohttp
import pytest

from tests.support import stack as product

pytestmark = pytest.mark.prove

DURATION_S = float(os.environ.get("EVENHAND_PROVE_SHARES_S", "300"))
SETTLE_S = 5.0
CLIENTS = 12
WEIGHTS = {"light": 1, "heavy": 3}


@pytest.fixture
def running(tmp_path, smollm2):
    stack = product.start(tmp_path / "data", smollm2, EVENHAND_ENGINE__MAX_NUM_SEQS="4")
    yield stack
    assert stack.stop() == 0


def tenant(stack, slug):
    key = stack.new_key(slug, "--weight", str(WEIGHTS[slug]))
    limits = {"--rpm": 10**6, "--tpm": 10**9, "--concurrency": 8, "--max-output": 16}
    options = [text for name, value in limits.items() for text in (name, str(value))]
    stack.admin("quota", "set", "--tenant", slug, *options)
    return key


async def client(session, url, model, number, until, served, tenant):
    """One caller in a closed loop, with a prompt nobody has sent before."""
    turn = 0
    while time.monotonic() < until:
        turn += 1
        body = {
            "model": model,
            "prompt": [5_000 + number, 6_000 + turn % 30_000, *range(2_000, 2_030)],
            "max_tokens": 16,
            "temperature": 1.5,
        }
        async with session.post(f"{url}/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            usage = (await answer.json())["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        units = usage["prompt_tokens"] - 0.9 * cached + 2 * usage["completion_tokens"]
        served.append((time.monotonic(), tenant, units))


async def load(url, model, keys):
    until = time.monotonic() + DURATION_S
    served = []
    async with asyncio.TaskGroup() as group:
        sessions = {
            name: aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"})
            for name, key in keys.items()
        }
        for name, session in sessions.items():
            for number in range(CLIENTS):
                base = number + 100 * (name == "heavy")
                group.create_task(client(session, url, model, base, until, served, name))
    for session in sessions.values():
        await session.close()
    return until, served


def test_shares_follow_weights(running):
    keys = {name: tenant(running, name) for name in WEIGHTS}
    model = running.first["model"]
    until, served = asyncio.run(load(running.url, model, keys))
    # The ends are left out: before both are backlogged and after callers stop asking.
    start = until - DURATION_S + SETTLE_S
    totals = dict.fromkeys(WEIGHTS, 0.0)
    for at, name, units in served:
        if start <= at <= until:
            totals[name] += units
    shares = {name: units / sum(totals.values()) for name, units in totals.items()}
    fair = {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}
    off = {name: shares[name] / fair[name] - 1 for name in WEIGHTS}
    figure = {"claim": "live shares", "seconds": DURATION_S, "requests": len(served)}
    print(json.dumps(figure | {"shares": shares, "relative_error": off}))
    assert all(abs(error) <= 0.10 for error in off.values())
