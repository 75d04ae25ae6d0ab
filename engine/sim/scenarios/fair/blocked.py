"""A tenant that its own limit blocks for an hour, and then not: it comes back without a claim.

For an hour its one stream holds its one place while its queue waits; two others share the rest. A
blocked tenant is idle: it earns nothing, its head's clock stands, and on its return its counter is
lifted to the floor. Counters that nobody lifts would give it the whole pool for half an hour.
"""

from collections.abc import Sequence
from dataclasses import replace

from numpy.random import Generator

from engine.core.config import CoreConfig
from engine.sim.incidents import Change, Incident
from engine.sim.job import Job, Span, Streams
from engine.sim.replica import MODEL_DIGEST, Replica
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.compare import (
    Client,
    Play,
    Setting,
    play,
    plays,
    result,
)
from engine.sim.step_time import EverySame
from engine.sim.workload import Arrival, Fixed, JobKind
from fairness import events
from fairness.controls import LcfPolicy
from fairness.types import PoolConfig, TenantTerms

HOUR = 3_600.0
SLOTS, STEP_S = 8, 1.0
BLOCKED, OTHERS = "blocked", ("one", "two")
PROMPT, ANSWER = 16, 32
NO_LIFT = "without the lift"
TERMS = TenantTerms(1_000, concurrency=2 * SLOTS, max_prompt_tokens=64, max_output_tokens=4_096)


def setting(rng: Generator, hour: float = HOUR) -> Setting:
    """Everybody asks for more than the pool does; after the hour the blocked one's limit goes."""
    streams = Streams()
    stream = Job(
        "stream", (Span(streams.new(), PROMPT),), Span(streams.new(), int(hour)), tenant=BLOCKED
    )
    sent = [Arrival(0.0, stream)]
    for name in (BLOCKED, *OTHERS):
        kind = JobKind(Fixed(PROMPT), Fixed(ANSWER), tenant=name)
        sent += Client(kind, rate=0.2, begins=1.0).arrivals(rng, streams, 1.5 * hour)

    def incidents() -> Sequence[Incident]:
        return [Change(hour + 10, BLOCKED, TERMS)]

    return Setting(
        {BLOCKED: replace(TERMS, concurrency=1), **dict.fromkeys(OTHERS, TERMS)},
        sent,
        seconds=1.25 * hour,
        since=hour + 10,
        replicas=lambda: [Replica("replica", _config(), EverySame(STEP_S))],
        pool=PoolConfig(ttl_s=4 * hour),
        incidents=incidents,
        sample_every=4,
    )


def _config() -> CoreConfig:
    return CoreConfig(1_024, 1 << 14, MODEL_DIGEST, max_num_seqs=SLOTS)


def without_rule(of: Setting) -> dict[str, Play]:
    """One whose counters are not lifted."""
    return {NO_LIFT: play(of, LcfPolicy())}


def missed_while_blocked(run: Play) -> int:
    """Deadlines of the blocked tenant that passed before its limit was raised."""
    return sum(
        missed.tenant == BLOCKED and missed.now < run.setting.since
        for missed in run.effects(events.Missed)
    )


def return_table(found: dict[str, Play]) -> Table:
    """What the hour earned."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            name,
            100 * run.shares[BLOCKED],
            sum(lifted.tenant == BLOCKED for lifted in run.effects(events.Lifted)),
            missed_while_blocked(run),
        )
        for name, run in found.items()
    )
    columns = ("queue", "its share after (%)", "lifts", "deadlines missed in the hour")
    return Table("the tenant's return", columns, rows)


def _run(rng: Generator) -> Result:
    found = plays(setting(rng), without_rule)
    return result("a tenant blocked for an hour", found, return_table(found))


SCENARIOS = (
    Scenario("fairness/blocked", "a tenant blocked for an hour, then unblocked", _run, plots=True),
)
