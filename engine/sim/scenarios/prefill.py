"""Long prompts beside streams: what a step's token budget trades, what a cached prefix saves."""

from collections.abc import Sequence
from dataclasses import replace

from numpy.random import Generator

from engine.sim.job import Job, Span, Streams
from engine.sim.presets import PRESETS, Preset
from engine.sim.replica import Replica
from engine.sim.report import Report, report
from engine.sim.result import Result, Table, run_table
from engine.sim.scenario import Scenario
from engine.sim.simulation import simulate
from engine.sim.workload import (
    Arrival,
    ClosedLoop,
    Exponential,
    JobKind,
    OpenLoop,
    arrivals,
    poisson,
)

BUDGETS = (64, 512, 4_096)
WHOLE_PROMPTS = 1 << 17  # more than all waiting prompts together
NUM_REQUESTS, RATE, SLOTS = 48, 6.0, 8
KIND = JobKind(prompts=Exponential(1_500), answers=Exponential(150))
_NUM_BLOCKS = 1 << 13  # memory is ample, and less of it to keep books of than the machine has

SHARED_TOKENS, OWN_TOKENS = 2_048, 64
WARM_PRESETS = ("h100-llama-3.1-8b", "a10g-llama-2-7b")


def mixed_traffic(rng: Generator) -> list[Arrival]:
    """48 requests, 6 per second; prompts of mean 1,500 tokens and answers of mean 150."""
    when = poisson(rng, RATE, NUM_REQUESTS)
    return arrivals(when, KIND.jobs(rng, Streams(), NUM_REQUESTS))


def at_budget(traffic: Sequence[Arrival], budget: int) -> Report:
    """Serve it in 8 slots by Llama 3.1 8B on one H100, with this token budget per step."""
    preset = PRESETS["h100-llama-3.1-8b"]
    config = replace(
        preset.config(max_num_seqs=SLOTS, max_num_batched_tokens=budget), num_blocks=_NUM_BLOCKS
    )
    return report(simulate(Replica("replica", config, preset.step_time), OpenLoop(traffic)))


def _chunked(rng: Generator) -> Result:
    traffic = mixed_traffic(rng)
    runs = {f"budget {budget:,}": at_budget(traffic, budget) for budget in BUDGETS}
    runs["whole prompts"] = at_budget(traffic, WHOLE_PROMPTS)
    rows = tuple(
        (name, 1e3 * run.itl.max, run.ttft.p99, run.ttft.p50) for name, run in runs.items()
    )
    columns = ("run", "longest gap (ms)", "TTFT p99 (s)", "TTFT p50 (s)")
    return Result(
        (
            Table("48 requests in 8 slots, Llama 3.1 8B on one H100", columns, rows),
            run_table("the same runs", runs),
        ),
        reports=runs,
    )


def first_token_s(preset: Preset) -> tuple[float, float]:
    """Seconds to the first token of a prompt whose first 2,048 tokens are new, then cached."""
    streams = Streams()
    shared = Span(streams.new(), SHARED_TOKENS)
    jobs = [
        Job(name, (shared, Span(streams.new(), OWN_TOKENS)), Span(streams.new(), 1))
        for name in ("cold", "warm")
    ]
    config = preset.config(max_num_seqs=1, max_num_batched_tokens=WHOLE_PROMPTS)
    trace = simulate(Replica("replica", config, preset.step_time), ClosedLoop(jobs, in_flight=1))
    cold, warm = (job.token_times[0] - job.arrived for job in trace.jobs.values())
    return cold, warm


def _warm(rng: Generator) -> Result:
    del rng
    rows = []
    for name in WARM_PRESETS:
        cold, warm = first_token_s(PRESETS[name])
        rows.append((PRESETS[name].summary, 1e3 * cold, 1e3 * warm, cold / warm))
    columns = ("machine", "TTFT new (ms)", "TTFT cached (ms)", "times faster")
    title = f"a prefix of {SHARED_TOKENS:,} tokens and {OWN_TOKENS} of one's own"
    return Result((Table(title, columns, tuple(rows)),))


SCENARIOS = (
    Scenario("chunked-prefill", "the longest gap and the first token by token budget", _chunked),
    Scenario("warm-prompt", "the first token after a cached prefix", _warm),
)
