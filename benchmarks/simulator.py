"""How fast virtual time runs: simulated steps per second of the real scheduler and KV cache.

Answers only, prefix cache on, at several numbers of requests in flight; one process, one core.
"""

import time
from dataclasses import replace
from pathlib import Path

from numpy.random import default_rng

from benchmarks.figures import summary
from engine.sim.job import Job, Streams
from engine.sim.presets import PRESETS
from engine.sim.replica import Replica
from engine.sim.simulation import simulate
from engine.sim.workload import ClosedLoop, Fixed, JobKind

RUNNING = (1, 16, 64, 256)
STEPS = 400
ROUNDS = 5
PRESET = PRESETS["h100-llama-3.1-8b"]


def run(model: Path) -> dict[str, object]:
    """Medians over rounds, for each number of requests in flight; no model is needed."""
    del model
    figures = {}
    for running in RUNNING:
        jobs = JobKind(Fixed(16), Fixed(STEPS)).jobs(default_rng(0), Streams(), running)
        seconds = [_round(jobs) for _ in range(ROUNDS)]
        figures[str(running)] = {
            "steps_per_s": summary([STEPS / s for s in seconds]),
            "us_per_row": summary([1e6 * s / (STEPS * running) for s in seconds]),
        }
    return {"steps": STEPS, "running": figures}


def _round(jobs: list[Job]) -> float:
    """Seconds for everyone's `STEPS` tokens, all of them together."""
    running = len(jobs)
    config = replace(
        PRESET.config(max_num_seqs=running, max_num_batched_tokens=16 * running),
        num_blocks=running * (STEPS // 16 + 2),
    )
    replica = Replica("replica", config, PRESET.step_time)
    began = time.perf_counter()
    simulate(replica, ClosedLoop(jobs, running))
    return time.perf_counter() - began
