"""Batching by request against batching by step, on the same slots.

The expected largest of B exponential lengths is their mean times H_B, the B-th harmonic number, so
a batch that ends with its longest answer uses 1/H_B of its slots.
"""

import numpy as np
from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.sim.job import Job, Span, Streams
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.report import Report, report
from engine.sim.result import Line, Plot, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.simulation import simulate
from engine.sim.static import StaticRun, exponential_utilisation, harmonic, serve
from engine.sim.step_time import EverySame
from engine.sim.workload import Arrival, Exponential, Lognormal, OpenLoop, poisson

BATCH_SIZES = (8, 32, 128)
NUM_BATCHES = 4_000
MEAN_ANSWER = 200.0
RATES, TRAFFIC_SLOTS = (0.03, 0.12), 32
ANSWERS = Lognormal(median=256, sigma=0.9, least=8, most=2048)
NUM_ANSWERS, BACKLOG_SLOTS = 4_096, 64


def essay() -> StaticRun:
    """32 requests come together: 31 answers of 50 tokens and one of 2,000."""
    return serve([50] * 31 + [2_000], slots=32)


def continuous(lengths: list[int], slots: int, arrivals: list[float] | None = None) -> Report:
    """Serve answers of these lengths by the real scheduler; every step takes one unit of time.

    Memory is ample and a prompt is one token, so that a slot is all that anyone waits for.
    """
    streams = Streams()
    when = arrivals or [0.0] * len(lengths)
    jobs = [
        Job(f"job-{number}", (Span(streams.new(), 1),), Span(streams.new(), length))
        for number, length in enumerate(lengths)
    ]
    longest = max(lengths) + 1
    config = CoreConfig(
        num_blocks=slots * (longest // 16 + 2),
        max_model_len=longest,
        model_digest=MODEL_DIGEST,
        max_num_seqs=slots,
        reserve=0.0,
        max_reserve=0.0,
        prefix_cache=False,
        max_waiting_requests=len(jobs),
    )
    workload = OpenLoop([Arrival(*pair) for pair in zip(when, jobs, strict=True)])
    return report(simulate(Replica("replica", config, EverySame()), workload))


def _static(rng: Generator) -> Result:
    """The useful share of static batches, beside the theorem."""
    useful = {
        slots: 100 * exponential_utilisation(rng, slots, NUM_BATCHES, MEAN_ANSWER)
        for slots in BATCH_SIZES
    }
    theorem = [100 / harmonic(slots) for slots in BATCH_SIZES]
    one = essay()
    batches = Table(
        f"static batches of exponential answers, {NUM_BATCHES:,} batches",
        ("slots", "useful slot-steps (%)", "1/H_B (%)"),
        tuple(zip(BATCH_SIZES, useful.values(), theorem, strict=True)),
    )
    single = Table(
        "one answer of 2,000 tokens among 31 of 50",
        ("slots", "steps", "useful slot-steps (%)"),
        ((one.slots, one.steps, 100 * one.utilisation),),
    )
    lines = (
        Line("simulated", BATCH_SIZES, list(useful.values())),
        Line("1/H_B", BATCH_SIZES, theorem),
    )
    plot = Plot("Static batching", "slots", "useful slot-steps (%)", lines, log_x=True)
    return Result((batches, single), (plot,))


def _backlog(rng: Generator) -> Result:
    """All requests are there at the start."""
    lengths = ANSWERS.draw(rng, NUM_ANSWERS)
    static, ours = serve(lengths, BACKLOG_SLOTS), continuous(lengths, BACKLOG_SLOTS)
    rows = (
        ("static", static.steps, 100 * static.utilisation, 1.0),
        ("continuous", ours.steps, 100 * ours.slot_utilisation, static.steps / ours.steps),
    )
    columns = ("batching", "steps", "useful slot-steps (%)", "speed-up")
    return Result((Table("4,096 lognormal answers through 64 slots", columns, rows),))


def traffic(rng: Generator, rate: float) -> tuple[list[float], list[int]]:
    """When 1,000 requests arrive, at `rate` per step, and how long their answers are."""
    return poisson(rng, rate, 1_000), Exponential(MEAN_ANSWER).draw(rng, 1_000)


def _traffic(rng: Generator) -> Result:
    rows: list[tuple[str | float, ...]] = []
    for rate in RATES:
        arrivals, lengths = traffic(rng, rate)
        static = serve(lengths, TRAFFIC_SLOTS, arrivals)
        ours = continuous(lengths, TRAFFIC_SLOTS, arrivals)
        waits = np.array(static.waits)
        # The first token comes at the end of the first step: a request that never waits has TTFT 1.
        rows += [
            (rate, "static", 100 * static.utilisation, waits.mean(), np.percentile(waits, 99)),
            (
                rate,
                "continuous",
                100 * ours.slot_utilisation,
                ours.ttft.mean - 1,
                ours.ttft.p99 - 1,
            ),
        ]
    columns = (
        "arrivals per step",
        "batching",
        "slots busy (%)",
        "mean wait (steps)",
        "p99 wait (steps)",
    )
    return Result((Table("1,000 requests on 32 slots", columns, tuple(rows)),))


SCENARIOS = (
    Scenario("static-batching", "static batches use 1/H_B of their slots", _static, plots=True),
    Scenario("backlog", "static against continuous steps on 4,096 answers", _backlog),
    Scenario("arrivals", "waits under both policies at a light and a heavy rate", _traffic),
)
