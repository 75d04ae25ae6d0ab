"""Tokens per second of one request while another process takes half a core, and alone.

The other process is busy for half of every 10 ms. Alone and beside it take turns, for ours and for
the peers that are installed.
"""

import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.contestants import Contestant, Start, evenhand, peers
from benchmarks.figures import prompts, summary

NEW_TOKENS: Final = 64
ROUNDS: Final = 3
# transformers takes half a minute for a round of this.
LEFT_OUT: Final = {"transformers_generate_batch"}
BUSY_HALF_OF_10_MS: Final = """
import time
while True:
    period = time.perf_counter() + 0.010
    while time.perf_counter() < period - 0.005:
        pass
    time.sleep(max(0.0, period - time.perf_counter()))
"""


def run(model: Path) -> dict[str, object]:
    """Medians, and the share of its speed that each engine keeps."""
    here, absent = peers()
    starts: dict[str, Start] = {"evenhand": evenhand()}
    starts |= {name: start for name, start in here.items() if name not in LEFT_OUT}
    with contextlib.ExitStack() as stack:
        started = {name: stack.enter_context(start(model)) for name, start in starts.items()}
        return {
            "new_tokens": NEW_TOKENS,
            "absent": [name for name in absent if name not in LEFT_OUT],
            "output_tokens_per_s": _measure(started),
        }


def _measure(started: dict[str, Contestant]) -> dict[str, object]:
    alone: dict[str, list[float]] = {name: [] for name in started}
    beside: dict[str, list[float]] = {name: [] for name in started}
    for round_ in range(-1, ROUNDS):  # the first only warms up
        for name, one in started.items():
            first, second = (prompts(1, seed=500 + 2 * round_ + turn) for turn in range(2))
            with one.awake():
                rate_alone = one.rate(first, NEW_TOKENS)
                with _half_a_core():
                    rate_beside = one.rate(second, NEW_TOKENS)
            if round_ >= 0:
                alone[name].append(rate_alone)
                beside[name].append(rate_beside)
    return {
        name: {
            "alone": summary(alone[name]),
            "beside_half_a_core": summary(beside[name]),
            "kept": round(
                statistics.median(b / a for a, b in zip(alone[name], beside[name], strict=True)), 2
            ),
        }
        for name in started
    }


@contextlib.contextmanager
def _half_a_core() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", BUSY_HALF_OF_10_MS]) as process:
        try:
            yield
        finally:
            process.kill()
