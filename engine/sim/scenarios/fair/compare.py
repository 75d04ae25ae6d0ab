"""One setting under several queues, and the tables and plots that every fairness scenario prints.

A setting is who asks for what, of which machine, and what disturbs it. It is played once per queue;
requests, machine and incidents are the same each time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import TypeVar

from numpy.random import Generator

from engine.sim.gateway import SimGateway
from engine.sim.incidents import DisturbedSimulation, Ends, Incident, Patience
from engine.sim.job import Job, Streams
from engine.sim.presets import PRESETS
from engine.sim.replica import Replica
from engine.sim.report import Report, report
from engine.sim.result import Cell, Line, Plot, Result, Table
from engine.sim.shares import (
    Delivered,
    Difference,
    difference,
    fairness_index,
    first_tokens,
    grouped,
    shares,
)
from engine.sim.trace import JobTrace, Trace
from engine.sim.workload import Arrival, JobKind, Lognormal, OpenLoop
from fairness.dispatcher import Dispatcher
from fairness.policy import FcfsPolicy, Policy, VtcPolicy
from fairness.types import PoolConfig, TenantTerms

FAIR, FCFS = "fair", "first come, first served"
TERMS = TenantTerms(1_000, concurrency=64, max_prompt_tokens=512, max_output_tokens=256)
PROMPTS = Lognormal(median=160, sigma=0.7, least=16, most=512)
ANSWERS = Lognormal(median=90, sigma=0.7, least=4, most=256)
SLOTS = 16
A10G = PRESETS["a10g-llama-2-7b"]
_UNIT = 1_000
Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Client:
    """Who sends what, how often (jobs per second on average), from when to when."""

    kind: JobKind
    rate: float
    begins: float = 0.0
    ends: float = inf

    def arrivals(self, rng: Generator, streams: Streams, seconds: float) -> list[Arrival]:
        """Poisson arrivals before `seconds`."""
        when: list[float] = []
        now, end = self.begins, min(self.ends, seconds)
        while (now := now + float(rng.exponential(1 / self.rate))) < end:
            when.append(now)
        jobs = self.kind.jobs(rng, streams, len(when))
        return [Arrival(*pair) for pair in zip(when, jobs, strict=True)]


def traffic(rng: Generator, clients: Sequence[Client], seconds: float) -> list[Arrival]:
    """Everybody's arrivals."""
    streams = Streams()
    return [one for client in clients for one in client.arrivals(rng, streams, seconds)]


def usual(name: str, rate: float, begins: float = 0.0, ends: float = inf) -> Client:
    """A client with lengths like everybody's: about 200 tokens in and 115 out."""
    return Client(JobKind(PROMPTS, ANSWERS, tenant=name, max_tokens=256), rate, begins, ends)


def one_a10g() -> Sequence[Replica]:
    """Llama 2 7B on one A10G, 16 slots: some 450 output tokens per second."""
    config = A10G.config(max_num_seqs=SLOTS, max_num_batched_tokens=512)
    return [Replica("replica", config, A10G.step_time)]


def nothing() -> Sequence[Incident]:
    """An undisturbed run."""
    return ()


@dataclass(frozen=True, slots=True)
class Setting:
    """A question to put to several queues.

    `terms` is by account, the tenants the dispatcher knows; `owner` says whose an account is, and
    the measures are of owners. Service before `since` does not count. `replicas` and
    `incidents` make theirs anew for every run.
    """

    terms: Mapping[str, TenantTerms]
    traffic: Sequence[Arrival]
    seconds: float
    since: float = 0.0
    replicas: Callable[[], Sequence[Replica]] = one_a10g
    pool: PoolConfig = field(default_factory=lambda: PoolConfig(ttl_s=3_600.0))
    incidents: Callable[[], Sequence[Incident]] = nothing
    patience: Mapping[str, Patience] = field(default_factory=dict)
    owner: Callable[[str], str] = str
    sample_every: int = 1

    def whose(self, job: Job) -> str:
        """The owner of a job."""
        return self.owner(job.tenant)

    @property
    def weights(self) -> dict[str, float]:
        """Each owner's weight."""
        return {self.owner(name): terms.weight_milli / _UNIT for name, terms in self.terms.items()}


@dataclass(frozen=True)
class Play:
    """A setting as it went under one queue."""

    setting: Setting
    trace: Trace
    gateway: SimGateway
    replicas: Sequence[Replica]
    ends: Ends

    @cached_property
    def report(self) -> Report:
        """The run in numbers."""
        return report(self.trace)

    @cached_property
    def jobs(self) -> dict[str, list[JobTrace]]:
        """Jobs by owner, in the order of the terms."""
        found = grouped(self.trace, self.setting.whose)
        return {name: found.get(name, []) for name in self.setting.weights}

    @cached_property
    def delivered(self) -> dict[str, Delivered]:
        """Service by owner."""
        prices = self.setting.pool.prices
        return {name: Delivered.of(jobs, prices) for name, jobs in self.jobs.items()}

    @cached_property
    def difference(self) -> Difference:
        """The service difference since the time that counts."""
        owner, since = self.setting.owner, self.setting.since
        samples = [
            replace(sample, backlogged=frozenset(map(owner, sample.backlogged)))
            for sample in self.gateway.samples
            if sample.now >= since
        ]
        return difference(samples, self.delivered, self.setting.weights)

    @property
    def shares(self) -> dict[str, float]:
        """Each owner's part of the service delivered in the time that counts."""
        return shares(self.delivered, self.setting.since, self.setting.seconds)

    @property
    def jain(self) -> float:
        """Of the owners' normalised service."""
        setting = self.setting
        return fairness_index(self.delivered, setting.weights, setting.since, setting.seconds)

    @property
    def units_per_s(self) -> float:
        """Service delivered per second, of all owners."""
        since, until = self.setting.since, self.setting.seconds
        return sum(d.between(since, until) for d in self.delivered.values()) / (until - since)

    @property
    def worst_of_bound(self) -> float:
        """The largest spread as a part of its bound at that moment; above 1 is a breach."""
        contended = (sample for sample in self.gateway.samples if sample.num_backlogged > 1)
        return max((sample.spread / sample.bound for sample in contended), default=0.0)

    def effects(self, kind: type[Seen]) -> list[Seen]:
        """The dispatcher's effects of this kind, in order."""
        return [effect for effect in self.gateway.effects if isinstance(effect, kind)]


def play(setting: Setting, policy: Policy, gateway: type[SimGateway] = SimGateway) -> Play:
    """Run the setting once, under this policy; `gateway` is how the dispatcher is driven."""
    replicas = setting.replicas()
    queue = gateway(Dispatcher(setting.pool, policy), setting.terms, setting.sample_every)
    for replica in replicas:
        queue.connect(replica)
    simulation = DisturbedSimulation(
        replicas, OpenLoop(setting.traffic), queue, setting.incidents(), setting.patience
    )
    return Play(setting, simulation.run(setting.seconds), queue, replicas, simulation.ends)


def fair_and_fcfs(setting: Setting) -> dict[str, Play]:
    """The two queues that every scenario compares."""
    return {FAIR: play(setting, VtcPolicy()), FCFS: play(setting, FcfsPolicy())}


def plays(setting: Setting, without_rule: Callable[[Setting], dict[str, Play]]) -> dict[str, Play]:
    """The two queues, and what goes without the rule that the scenario is about."""
    return fair_and_fcfs(setting) | without_rule(setting)


# --- tables and plots --------------------------------------------------------------------------


def queues_table(title: str, plays: Mapping[str, Play]) -> Table:
    """A row per queue: the service difference, Jain, throughput, refusals."""
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            run.difference.largest,
            run.difference.mean,
            run.difference.variance,
            run.jain,
            run.report.output_tokens_per_s,
            run.units_per_s,
            run.report.refused,
        )
        for name, run in plays.items()
    ]
    columns = (
        "queue",
        "diff. max",
        "diff. mean",
        "diff. variance",
        "Jain",
        "output tokens/s",
        "units/s",
        "refused",
    )
    return Table(title, columns, tuple(rows))


def tenants_table(title: str, plays: Mapping[str, Play]) -> Table:
    """A row per queue and tenant: its share, its waits for the first token, what became of it."""
    rows: list[tuple[Cell, ...]] = []
    for name, run in plays.items():
        parts = run.shares
        for owner, jobs in run.jobs.items():
            waits = first_tokens(jobs)
            rows.append(
                (
                    name,
                    owner,
                    100 * parts[owner],
                    waits.mean,
                    waits.p50,
                    waits.p99,
                    len(jobs),
                    sum(bool(job.token_times) for job in jobs),
                    sum(job.job.job_id in run.trace.refused for job in jobs),
                )
            )
    columns = (
        "queue",
        "tenant",
        "share (%)",
        "TTFT mean (s)",
        "TTFT p50 (s)",
        "TTFT p99 (s)",
        "requests",
        "answered",
        "refused",
    )
    return Table(title, columns, tuple(rows))


def difference_plot(title: str, plays: Mapping[str, Play]) -> Plot:
    """The service difference over time, a line per queue."""
    lines = tuple(
        Line(name, run.difference.when.tolist(), run.difference.units.tolist())
        for name, run in plays.items()
    )
    return Plot(f"{title}: service difference", "seconds", "units per weight", lines)


def service_plot(title: str, run: Play, queue: str = FAIR) -> Plot:
    """What each tenant has received over time, under one queue."""
    lines = tuple(
        Line(name, [0.0, *one.when.tolist()], [0.0, *one.total.tolist()])
        for name, one in run.delivered.items()
    )
    return Plot(f"{title}: service received, {queue}", "seconds", "units", lines)


def result(title: str, plays: Mapping[str, Play], *special: Table) -> Result:
    """What every scenario prints, and what is `special` to it below."""
    last = list(plays)[-1]
    return Result(
        (queues_table(title, plays), tenants_table("by tenant", plays), *special),
        (
            difference_plot(title, plays),
            *(service_plot(title, plays[queue], queue) for queue in dict.fromkeys((FAIR, last))),
        ),
        {name: run.report for name, run in plays.items()},
    )
