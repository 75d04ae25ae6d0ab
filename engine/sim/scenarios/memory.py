"""How many requests fit into one KV pool, and how much of what is set aside holds tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.core.kv_cache import KVCache
from engine.core.request import Request, SamplingParams
from engine.sim.presets import BLOCK_SIZE, H100, LLAMA_3_1_8B, kv_tokens_beside
from engine.sim.replica import MODEL_DIGEST
from engine.sim.result import Result, Table
from engine.sim.scenario import Scenario
from engine.sim.workload import Lognormal

MAX_MODEL_LEN, MAX_TOKENS = 8_192, 2_048
PROMPTS = Lognormal(median=512, sigma=0.9, least=16, most=6_000)
ANSWERS = Lognormal(median=256, sigma=0.9, least=8, most=MAX_TOKENS)
NUM_REQUESTS = 200_000
NUM_FILLS = 24

Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Requests caught at a random moment: prompt and whole answer, and tokens stored by now."""

    prompt: Lengths
    answer: Lengths
    now: Lengths


def in_flight(rng: Generator, count: int = NUM_REQUESTS) -> InFlight:
    """`count` of them; a moment is uniform over the answer."""
    prompt = np.array(PROMPTS.draw(rng, count))
    answer = np.array(ANSWERS.draw(rng, count))
    moment = rng.uniform(0, 1, count)
    return InFlight(prompt, answer, prompt + (moment * answer).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Allocation:
    """A policy: the share of what it sets aside that holds tokens, and how many requests fit."""

    policy: str
    useful: float
    fits: float


def contiguous(requests: InFlight, kv_tokens: int) -> list[Allocation]:
    """The policies that set one run of memory aside for each request, at its start."""
    policies = {
        "longest possible": np.full(len(requests.now), MAX_MODEL_LEN),
        "prompt + max_tokens": requests.prompt + MAX_TOKENS,
        "exact final length": requests.prompt + requests.answer,
    }
    return [
        Allocation(policy, float(requests.now.sum() / aside.sum()), float(kv_tokens / aside.mean()))
        for policy, aside in policies.items()
    ]


def paged(requests: InFlight, kv_tokens: int, fills: int = NUM_FILLS) -> Allocation:
    """Fill the real block pool with requests until one is refused, `fills` times over."""
    stored = held = admitted = 0
    upcoming = iter(requests.now.tolist())
    for _ in range(fills):
        cache = _cache(kv_tokens // BLOCK_SIZE)
        for num_tokens in upcoming:
            if not cache.admit(_request(num_tokens), reserve_blocks=0):
                break
            stored += num_tokens
            admitted += 1
        held += cache.pool.num_held * BLOCK_SIZE
    return Allocation(f"paged, blocks of {BLOCK_SIZE}", stored / held, admitted / fills)


def wasted_slots(requests: InFlight) -> float:
    """Token places that paging holds and does not use, on average per request."""
    return float((-requests.now % BLOCK_SIZE).mean())


def _cache(num_blocks: int) -> KVCache:
    return KVCache(
        CoreConfig(
            num_blocks, num_blocks * BLOCK_SIZE, MODEL_DIGEST, BLOCK_SIZE, prefix_cache=False
        )
    )


def _request(num_tokens: int) -> Request:
    """A sequence nobody shares a block with; without a prefix cache its ids do not matter."""
    return Request("request", (0,) * num_tokens, SamplingParams(1), "namespace")


def _allocation(rng: Generator) -> Result:
    kv_tokens = kv_tokens_beside(H100, LLAMA_3_1_8B)
    requests = in_flight(rng)
    policies = [*contiguous(requests, kv_tokens), paged(requests, kv_tokens)]
    return Result(
        (
            Table(
                f"one H100, Llama 3.1 8B, {kv_tokens:,} tokens of KV memory",
                ("set aside", "useful (%)", "requests that fit"),
                tuple((p.policy, 100 * p.useful, p.fits) for p in policies),
            ),
            Table(
                "what paging wastes",
                ("block size", "places per request", "of a mean request (%)"),
                (
                    (
                        BLOCK_SIZE,
                        wasted_slots(requests),
                        100 * wasted_slots(requests) / float(requests.now.mean()),
                    ),
                ),
            ),
        )
    )


SCENARIOS = (
    Scenario("allocation", "requests that fit under four ways to set memory aside", _allocation),
)
