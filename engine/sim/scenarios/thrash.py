"""A pool at one and a half times its demand: what the admission reserve and its governor prevent.

75 clients each keep one request in flight: 1,000 tokens in, 5,000 out, a pool of 299,584 tokens.
The setting, and the published figures beside ours, are those of vLLM #44594 (Qwen2.5 7B, there on
a GB200).
"""

from dataclasses import replace

from numpy.random import Generator, default_rng

from engine.core.config import CoreConfig
from engine.sim.job import Streams
from engine.sim.presets import BLOCK_SIZE, PRESETS
from engine.sim.replica import Replica
from engine.sim.report import Report, report
from engine.sim.result import Result, Table, run_table
from engine.sim.scenario import Scenario
from engine.sim.simulation import simulate
from engine.sim.workload import ClosedLoop, Fixed, JobKind

IN_FLIGHT, NUM_REQUESTS = 75, 450
PROMPT_TOKENS, ANSWER_TOKENS = 1_000, 5_000
TOKEN_BUDGET = 8_192
FIXED_RESERVES = (0.02, 0.05, 0.10)
OFF, DEFAULT = "no reserve", "default"

# vLLM #44594: reserve, preemptions, output tokens/s, TTFT p50 and p99 in s, ITL p99 in ms.
PUBLISHED = (
    ("off", 1_065, 11_582, 6.56, 25.51, 40.62),
    ("0.02", 400, 12_134, 11.80, 26.49, 18.80),
    ("0.05", 187, 12_167, 11.20, 28.94, 17.70),
    ("0.10", 168, 11_835, 8.96, 31.02, 17.57),
)


def config(scale: int = 1) -> CoreConfig:
    """The engine with its defaults, in a pool `scale` times smaller than the published one."""
    preset = PRESETS["h100-qwen2.5-7b"]
    whole = preset.config(max_num_seqs=IN_FLIGHT, max_num_batched_tokens=TOKEN_BUDGET // scale)
    return replace(whole, num_blocks=preset.kv_tokens // scale // BLOCK_SIZE)


def overload(config: CoreConfig, scale: int = 1) -> Report:
    """Serve all requests, with lengths `scale` times shorter."""
    kind = JobKind(Fixed(PROMPT_TOKENS // scale), Fixed(ANSWER_TOKENS // scale))
    jobs = kind.jobs(default_rng(0), Streams(), NUM_REQUESTS)
    step_time = PRESETS["h100-qwen2.5-7b"].step_time
    return report(simulate(Replica("replica", config, step_time), ClosedLoop(jobs, IN_FLIGHT)))


def fixed(config: CoreConfig, reserve: float) -> CoreConfig:
    """The same engine with a reserve that never changes."""
    return replace(config, reserve=reserve, max_reserve=reserve)


def _thrash(rng: Generator) -> Result:
    """Nothing here is random: all lengths are equal and clients never pause."""
    del rng
    base = config()
    settings = {OFF: fixed(base, 0.0)}
    settings |= {f"{reserve:.2f} fixed": fixed(base, reserve) for reserve in FIXED_RESERVES}
    settings[DEFAULT] = base
    runs = {name: overload(setting) for name, setting in settings.items()}
    columns = (
        "reserve",
        "preemptions",
        "output tokens/s",
        "TTFT p50 (s)",
        "TTFT p99 (s)",
        "ITL p99 (ms)",
    )
    return Result(
        (
            run_table("450 requests of 1,000 + 5,000 tokens, 75 in flight", runs),
            Table("published for vLLM on a GB200", columns, PUBLISHED),
        ),
        reports=runs,
    )


SCENARIOS = (Scenario("thrash", "preemption under overload, by admission reserve", _thrash),)
