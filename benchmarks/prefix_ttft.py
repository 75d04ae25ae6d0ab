"""Time to first token of a 2,048-token prefix plus 64 tokens, cold and with the prefix cached.

Beside it, how far the logits of a prompt whose prefix was found lie from those of the same prompt
computed whole, on the same runner.
"""

import asyncio
import random
from pathlib import Path

import numpy as np

from benchmarks import local_engine
from benchmarks.figures import FIRST_ID, LAST_ID, summary
from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner

PREFIX_TOKENS = 2_048
SUFFIX_TOKENS = 64
ROUNDS = 3
BLOCK = 16
CHUNK = 512


def run(model: Path) -> dict[str, object]:
    """Each round has a prefix of its own: cold once, then warm with another suffix."""
    with local_engine.engine(model) as engine:
        times = asyncio.run(_measure(engine.socket))
    return times | {"largest_logit_difference_warm_to_cold": _logit_difference(model)}


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


def _logit_difference(path: Path) -> float:
    model = load_model(path)
    blocks = (PREFIX_TOKENS + SUFFIX_TOKENS) // BLOCK
    shared = PREFIX_TOKENS // BLOCK
    runner = DecoderRunner(model, 2 * blocks + blocks - shared, BLOCK, 1, CHUNK)
    draw = random.Random(64)
    prefix, suffix, other = (
        [draw.randint(FIRST_ID, LAST_ID) for _ in range(count)]
        for count in (PREFIX_TOKENS, SUFFIX_TOKENS, SUFFIX_TOKENS)
    )
    whole = list(range(blocks))
    another = list(range(blocks, 2 * blocks))
    found = another[:shared] + list(range(2 * blocks, 3 * blocks - shared))
    # Cut elsewhere than the warm run, so that equal shapes cannot hide a difference.
    cold = _last_logits(runner, prefix + suffix, 0, whole, CHUNK - 12)
    _last_logits(runner, prefix + other, 0, another, CHUNK)
    warm = _last_logits(runner, prefix + suffix, PREFIX_TOKENS, found, CHUNK)
    return float(np.abs(cold - warm).max())


def _last_logits(
    runner: DecoderRunner, prompt: list[int], start: int, table: list[int], chunk: int
) -> np.ndarray:
    """Compute the prompt from `start` in chunks, into and over the pages of `table`."""
    greedy = SamplingParams(max_tokens=1, temperature=0)
    logits = np.empty((1, 0))
    for at in range(start, len(prompt), chunk):
        tokens = prompt[at : at + chunk]
        last = at + len(tokens) == len(prompt)
        row = ScheduledRow("bench", tokens, at, (table,), greedy, samples=last)
        logits = runner.execute_logits(ScheduledBatch(at, (row,), len(tokens)))
    return logits[0]
