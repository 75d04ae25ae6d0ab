"""Tenants before one replica: the fair dispatcher, and first come first served as its control.

A scenario here is a list of tenants and a machine. Only time in which at least two tenants are
backlogged counts, for that is what the fairness bound speaks of (docs/fairness.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from numpy.random import Generator

from engine.sim.job import Streams
from engine.sim.presets import PRESETS
from engine.sim.queues import Fair, FairnessSample
from engine.sim.replica import Replica
from engine.sim.report import Report, report
from engine.sim.result import Line, Plot, Result, Table, run_table
from engine.sim.scenario import Scenario
from engine.sim.simulation import Simulation
from engine.sim.workload import Arrival, JobKind, Lognormal, OpenLoop, arrivals, poisson
from fairness.dispatcher import Dispatcher
from fairness.policy import FcfsPolicy, Policy, VtcPolicy
from fairness.types import PoolConfig, TenantTerms

SECONDS = 90.0
_UNIT = 1_000  # milli-units in a service unit


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who sends what, how often (jobs per second on average), and under which terms."""

    name: str
    terms: TenantTerms
    kind: JobKind
    rate: float

    def arrivals(self, rng: Generator, streams: Streams, seconds: float) -> list[Arrival]:
        """Poisson arrivals of about `seconds` worth of jobs."""
        count = max(1, round(self.rate * seconds))
        return arrivals(poisson(rng, self.rate, count), self.kind.jobs(rng, streams, count))


@dataclass(frozen=True, slots=True)
class FairRun:
    """A run and the pool's samples, one per step, from it."""

    report: Report
    samples: Sequence[FairnessSample]

    @property
    def contended(self) -> list[FairnessSample]:
        """The samples at which at least two tenants were backlogged."""
        return [sample for sample in self.samples if sample.num_backlogged > 1]

    def service(self) -> dict[str, float]:
        """Service units charged to each tenant between the first and the last contended sample."""
        first, last = self.contended[0].service, self.contended[-1].service
        return {tenant: (last[tenant] - first.get(tenant, 0)) / _UNIT for tenant in last}

    @property
    def largest_spread(self) -> float:
        """In normalised service units."""
        return max(sample.spread for sample in self.contended) / _UNIT

    @property
    def largest_bound(self) -> float:
        """In normalised service units."""
        return max(sample.bound for sample in self.contended) / _UNIT

    @property
    def beyond_bound(self) -> int:
        """Contended samples whose spread is above their own bound."""
        return sum(sample.spread > sample.bound for sample in self.contended)


def share_a_replica(
    policy: Policy,
    tenants: Sequence[Tenant],
    traffic: Sequence[Arrival],
    seconds: float = SECONDS,
) -> FairRun:
    """Serve the tenants' traffic with Llama 2 7B on one A10G for so long, under this policy."""
    preset = PRESETS["a10g-llama-2-7b"]
    replica = Replica(
        "replica", preset.config(max_num_seqs=16, max_num_batched_tokens=512), preset.step_time
    )
    pool = PoolConfig(ttl_s=10 * seconds)
    queue = Fair(Dispatcher(pool, policy), {tenant.name: tenant.terms for tenant in tenants})
    queue.connect(replica)
    trace = Simulation([replica], OpenLoop(traffic), queue).run(seconds)
    return FairRun(report(trace), queue.samples)


def weighted_tenants() -> list[Tenant]:
    """Two tenants of weights 1 and 3, each with more work than the replica can do for both."""
    limits = {"concurrency": 16, "max_prompt_tokens": 512, "max_output_tokens": 256}
    lengths = Lognormal(median=160, sigma=0.7, least=16, most=512)
    answers = Lognormal(median=90, sigma=0.7, least=4, most=256)
    return [
        Tenant(
            name, TenantTerms(weight, **limits), JobKind(lengths, answers, tenant=name), rate=6.0
        )
        for name, weight in (("one", 1_000), ("three", 3_000))
    ]


def _weights(rng: Generator) -> Result:
    tenants, streams = weighted_tenants(), Streams()
    traffic = [arrival for tenant in tenants for arrival in tenant.arrivals(rng, streams, SECONDS)]
    runs = {
        "fair": share_a_replica(VtcPolicy(), tenants, traffic),
        "first come, first served": share_a_replica(FcfsPolicy(), tenants, traffic),
    }
    rows = tuple(
        (
            name,
            run.service()["three"] / run.service()["one"],
            run.largest_spread,
            run.largest_bound,
            run.beyond_bound,
        )
        for name, run in runs.items()
    )
    columns = ("queue", "service 3 : 1", "largest spread", "bound", "samples beyond")
    reports = {name: run.report for name, run in runs.items()}
    return Result(
        (
            Table("two tenants of weights 1 and 3, both with more work than fits", columns, rows),
            run_table("the same runs", reports),
        ),
        (_spread_plot(runs["fair"], runs["first come, first served"]),),
        reports,
    )


def _spread_plot(fair: FairRun, fcfs: FairRun) -> Plot:
    lines = [
        Line(name, [s.now for s in run.contended], [s.spread / _UNIT for s in run.contended])
        for name, run in (("fair", fair), ("first come, first served", fcfs))
    ]
    bound = Line(
        "bound", [s.now for s in fair.contended], [s.bound / _UNIT for s in fair.contended]
    )
    return Plot("Spread of two tenants", "seconds", "service units per weight", (*lines, bound))


SCENARIOS = (
    Scenario("weights", "two tenants of weights 1 and 3 share one replica", _weights, plots=True),
)
