"""Output tokens per second at 1 and 16 concurrent, beside transformers' continuous batching.

Both serve the same weights in fp32, greedily: prompts of 128 tokens nobody has sent before, 64 new
tokens each, prefill included. Ours is measured through the engine's HTTP API; the peer in process.
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aiohttp

from benchmarks import local_engine

PROMPT_TOKENS = 128
NEW_TOKENS = 64
CONCURRENT = (1, 16)
ROUNDS = 5
FIRST_ID, LAST_ID = 1_000, 40_000


def prompts(count: int, seed: int) -> list[list[int]]:
    """Random prompts: no prefix cache can help."""
    draw = random.Random(seed)
    return [[draw.randint(FIRST_ID, LAST_ID) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def run(model: Path) -> dict[str, object]:
    """Medians over rounds, and the ratio to the peer in this run."""
    ours = _ours(model)
    peer = _peer(model)
    ratio = {
        n: ours[n]["median"] / peer[n]["median"] for n in ours if peer.get(n, {}).get("median")
    }
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "output_tokens_per_s": {"evenhand": ours, "transformers_generate_batch": peer},
        "ratio": ratio,
    }


def _ours(model: Path) -> dict[str, dict[str, float]]:
    with local_engine.engine(model) as socket:
        return asyncio.run(_measure(socket))


async def _measure(socket: Path) -> dict[str, dict[str, float]]:
    figures = {}
    async with local_engine.session(socket) as http:
        name = await local_engine.model_id(http)
        await local_engine.complete(http, name, prompts(1, seed=99)[0], 4)
        for count in CONCURRENT:
            rates = [await _round(http, name, prompts(count, seed=r)) for r in range(ROUNDS)]
            figures[str(count)] = summary(rates)
    return figures


async def _round(http: aiohttp.ClientSession, name: str, batch: list[list[int]]) -> float:
    began = time.perf_counter()
    timings = await asyncio.gather(
        *(local_engine.complete(http, name, prompt, NEW_TOKENS) for prompt in batch)
    )
    return sum(t.output_tokens for t in timings) / (time.perf_counter() - began)


def summary(values: list[float]) -> dict[str, float]:
    """Median and range, rounded for reading."""
    return {
        "median": round(statistics.median(values), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }


def _peer(model: Path) -> dict[str, dict[str, float]]:
    """In a process of its own, so that its memory is gone before the next section."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peer_transformers", str(model)],
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return figures
