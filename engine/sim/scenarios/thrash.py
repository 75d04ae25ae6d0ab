"""A pool at one and a half times its demand: what the admission reserve and its governor prevent.

The workload is that of published measurements (vLLM #44594): 450 requests of about 1,000 tokens
in and 5,000 out, each length uniform within 20 %, 128 in flight, a pool of 299,584 tokens. On
average 128 requests hold 3,500 tokens each. There Qwen2.5 7B ran on a GB200, here it is an H100.
"""

from collections.abc import Sequence
from dataclasses import replace

from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.sim.job import Job, Streams
from engine.sim.presets import BLOCK_SIZE, PRESETS
from engine.sim.replica import Replica
from engine.sim.report import Report, report
from engine.sim.result import Result, Table, run_table
from engine.sim.scenario import Scenario
from engine.sim.simulation import simulate
from engine.sim.workload import ClosedLoop, JobKind, Uniform

IN_FLIGHT, NUM_REQUESTS = 128, 450
PROMPT_TOKENS, ANSWER_TOKENS, WITHIN = 1_000, 5_000, 0.2
TOKEN_BUDGET, SLOTS = 8_192, 256
FIXED_RESERVES = (0.02, 0.05, 0.10)
PRESET = PRESETS["h100-qwen2.5-7b"]

PUBLISHED = (
    ("off", 1_065, 11_582, 6.56, 25.51, 40.62),
    ("0.02", 400, 12_134, 11.80, 26.49, 18.80),
    ("0.05", 187, 12_167, 11.20, 28.94, 17.70),
    ("0.10", 168, 11_835, 8.96, 31.02, 17.57),
)


def config(scale: int = 1) -> CoreConfig:
    """The engine with its defaults, in a pool `scale` times smaller than the published one."""
    whole = PRESET.config(max_num_seqs=SLOTS, max_num_batched_tokens=TOKEN_BUDGET)
    return replace(whole, num_blocks=PRESET.kv_tokens // scale // BLOCK_SIZE)


def fixed(config: CoreConfig, reserve: float) -> CoreConfig:
    """The same engine with a reserve that never changes."""
    return replace(config, reserve=reserve, max_reserve=reserve)


def requests(rng: Generator, scale: int = 1) -> list[Job]:
    """The requests, with lengths `scale` times shorter."""
    prompts, answers = (
        Uniform(round(mean * (1 - WITHIN) / scale), round(mean * (1 + WITHIN) / scale))
        for mean in (PROMPT_TOKENS, ANSWER_TOKENS)
    )
    return JobKind(prompts, answers).jobs(rng, Streams(), NUM_REQUESTS)


def overload(jobs: Sequence[Job], config: CoreConfig, in_flight: int = IN_FLIGHT) -> Report:
    """Serve all of them, so many at a time."""
    replica = Replica("replica", config, PRESET.step_time)
    return report(simulate(replica, ClosedLoop(jobs, in_flight)))


def _thrash(rng: Generator) -> Result:
    jobs, base = requests(rng), config()
    settings = {"no reserve": fixed(base, 0.0)}
    settings |= {f"{reserve:.2f} fixed": fixed(base, reserve) for reserve in FIXED_RESERVES}
    settings["default"] = base
    runs = {name: overload(jobs, setting) for name, setting in settings.items()}
    columns = (
        "watermark",
        "preemptions",
        "output tokens/s",
        "TTFT p50 (s)",
        "TTFT p99 (s)",
        "ITL p99 (ms)",
    )
    title = f"{NUM_REQUESTS} requests, {IN_FLIGHT} in flight, Qwen2.5 7B on one H100, by reserve"
    return Result(
        (run_table(title, runs), Table("published for vLLM on a GB200", columns, PUBLISHED)),
        reports=runs,
    )


SCENARIOS = (Scenario("thrash", "preemption under overload, by admission reserve", _thrash),)
