"""A tenant most of whose prompts share four beginnings, beside one whose prompts share nothing.

Inside its own queue the tenant's requests may go in the order of the cache, each being passed at
most eight times. Between tenants the cache changes nothing: put first, cached prompts would starve
the other tenant.
"""

from numpy.random import Generator

from engine.sim.job import Span, Streams
from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.broken import PrefixFirst
from engine.sim.scenarios.fair.compare import (
    TERMS,
    Client,
    Play,
    Setting,
    play,
    plays,
    result,
)
from engine.sim.workload import Arrival, Fixed, JobKind, Uniform
from fairness import events
from fairness.types import PassReason

SECONDS = 90.0
REPEATER, OTHER = "repeater", "other"
RATES = {REPEATER: 16.0, OTHER: 8.0}
NUM_PREFIXES, PREFIX, OWN, NEW_RATE = 4, 384, 64, 2.0
PREFIX_FIRST = "cached prompts first"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Both want more than half; the repeater's beginnings come in random order."""
    streams, answers = Streams(), Uniform(16, 64)
    sent: list[Arrival] = []
    for _ in range(NUM_PREFIXES):
        beginning = (Span(streams.new(), PREFIX),)
        kind = JobKind(Fixed(OWN), answers, beginning, tenant=REPEATER, max_tokens=64)
        some = Client(kind, RATES[REPEATER] / NUM_PREFIXES).arrivals(rng, streams, seconds)
        sent += [renamed(arrival, len(sent) + number) for number, arrival in enumerate(some)]
    kind = JobKind(Fixed(PREFIX + OWN), answers, tenant=REPEATER, max_tokens=64)
    some = Client(kind, NEW_RATE).arrivals(rng, streams, seconds)
    sent += [renamed(arrival, len(sent) + number) for number, arrival in enumerate(some)]
    kind = JobKind(Fixed(PREFIX + OWN), answers, tenant=OTHER, max_tokens=64)
    sent += Client(kind, RATES[OTHER]).arrivals(rng, streams, seconds)
    return Setting({REPEATER: TERMS, OTHER: TERMS}, sent, seconds, since=seconds / 9)


def renamed(arrival: Arrival, number: int) -> Arrival:
    """A job under a number that is its own among all of the repeater's."""
    job = arrival.job
    name = f"{REPEATER}-{number}"
    return Arrival(
        arrival.when, type(job)(name, job.prompt, job.answer, job.max_tokens, job.tenant)
    )


def without_rule(of: Setting) -> dict[str, Play]:
    """One that puts what is cached before everything."""
    return {PREFIX_FIRST: play(of, PrefixFirst())}


def most_overtaken(run: Play) -> int:
    """The most often that any request was passed for a sibling's prefix."""
    passes = run.effects(events.Passed)
    return max((p.passes for p in passes if p.reason is PassReason.LOCALITY), default=0)


def cache_table(found: dict[str, Play]) -> Table:
    """Hits, and what they cost the others."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, 100 * run.report.hit_rate, most_overtaken(run), 100 * run.shares[OTHER])
        for name, run in found.items()
    )
    columns = ("queue", "prompt tokens hit (%)", "most passes", f"{OTHER}'s share (%)")
    return Table("the cache", columns, rows)


def _run(rng: Generator) -> Result:
    found = plays(setting(rng), without_rule)
    return result("one of two tenants repeats its beginnings", found, cache_table(found))


SCENARIOS = (
    Scenario("fairness/prefixes", "a tenant whose prompts are mostly cached", _run, plots=True),
)
