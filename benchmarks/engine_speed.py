"""Output tokens per second at 1 and 16 concurrent requests, beside the peers that are installed.

All serve the same weights greedily: prompts of 128 tokens nobody has sent before, 64 new tokens
each, prefill included. The engines take turns round by round, each stopped while it is not its
turn, so that a drift of the machine hits all alike. Ours is asked over its HTTP API, exact and with
8-bit activations; llama.cpp over HTTP, OpenVINO GenAI and transformers in process.
"""

import contextlib
import statistics
from pathlib import Path

from benchmarks.contestants import Contestant, Start, evenhand, peers
from benchmarks.figures import PROMPT_TOKENS, prompts, summary

NEW_TOKENS = 64
CONCURRENT = (1, 16)
ROUNDS = 3
# The slowest by far: more rounds of it would take longer than all others together.
ONE_ROUND = {"transformers_generate_batch"}

# Exact arithmetic is the default; 8-bit activations are what an operator may choose.
OURS: dict[str, Start] = {
    "evenhand": evenhand(),
    "evenhand_int8": evenhand(EVENHAND_ENGINE__QUANTIZATION="activations-int8"),
}

Rates = dict[str, dict[int, list[float]]]


def run(model: Path) -> dict[str, object]:
    """Medians over rounds, and the ratios of ours to each peer's in this run."""
    here, absent = peers()
    starts: dict[str, Start] = {**OURS, **here}
    with contextlib.ExitStack() as stack:
        started = {name: stack.enter_context(start(model)) for name, start in starts.items()}
        rates = _rates(started)
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "versions": {name: one.about for name, one in started.items()},
        "absent": absent,
        "output_tokens_per_s": {
            name: {str(count): summary(values) for count, values in by_count.items()}
            for name, by_count in rates.items()
        },
        "ratio": _ratios(rates),
    }


def _rates(started: dict[str, Contestant]) -> Rates:
    for one in started.values():
        with one.awake():
            one.rate(prompts(1, seed=99), 4)
    rates: Rates = {name: {count: [] for count in CONCURRENT} for name in started}
    for round_ in range(ROUNDS):
        for count in CONCURRENT:
            batch = prompts(count, seed=1_000 * count + round_)  # never a prompt seen before
            for name, one in started.items():
                if round_ and name in ONE_ROUND:
                    continue
                with one.awake():
                    rates[name][count].append(one.rate(batch, NEW_TOKENS))
    return rates


def _ratios(rates: Rates) -> dict[str, dict[str, dict[str, float]]]:
    """Of medians: {ours: {peer: {concurrent: ratio}}}."""
    medians = {
        name: {count: statistics.median(values) for count, values in by_count.items()}
        for name, by_count in rates.items()
    }
    return {
        mine: {
            name: {str(n): round(medians[mine][n] / medians[name][n], 2) for n in CONCURRENT}
            for name in rates
            if name not in OURS
        }
        for mine in OURS
    }
