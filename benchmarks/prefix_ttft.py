"""Time to first token of a 2,048-token prefix plus 64 tokens, cold and with the prefix cached."""

import asyncio
import random
from pathlib import Path

from benchmarks import local_engine
from benchmarks.engine_speed import FIRST_ID, LAST_ID, summary

PREFIX_TOKENS = 2_048
SUFFIX_TOKENS = 64
ROUNDS = 3


def run(model: Path) -> dict[str, object]:
    """Each round has a prefix of its own: cold once, then warm with another suffix."""
    with local_engine.engine(model) as socket:
        return asyncio.run(_measure(socket))


async def _measure(socket: Path) -> dict[str, object]:
    cold, warm, cached = [], [], []
    draw = random.Random(2_048)
    async with local_engine.session(socket) as http:
        name = await local_engine.model_id(http)
        for _ in range(ROUNDS):
            prefix = [draw.randint(FIRST_ID, LAST_ID) for _ in range(PREFIX_TOKENS)]
            for seconds in (cold, warm, warm):
                suffix = [draw.randint(FIRST_ID, LAST_ID) for _ in range(SUFFIX_TOKENS)]
                timing = await local_engine.complete(http, name, prefix + suffix, 1)
                seconds.append(timing.ttft_s)
                cached.append(timing.cached_tokens)
    return {
        "prefix_tokens": PREFIX_TOKENS,
        "suffix_tokens": SUFFIX_TOKENS,
        "cold_s": summary(cold),
        "warm_s": summary(warm),
        "cached_tokens": cached,
    }
