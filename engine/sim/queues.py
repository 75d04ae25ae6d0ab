"""What stands between arrivals and replicas: nothing, or the real fair dispatcher."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.core.batch import StepReport
from engine.sim.job import Job
from engine.sim.replica import Replica
from fairness import events
from fairness.dispatcher import Dispatcher
from fairness.types import ReplicaCapacity, TenantTerms


@dataclass(frozen=True, slots=True)
class Grant:
    """Send `job` to `replica` now."""

    job: Job
    replica: str


class Queue(Protocol):
    """Decides when an arrived job goes to which replica."""

    @property
    def refused(self) -> Sequence[str]:
        """The jobs it will never grant, by id."""
        ...

    def arrive(self, now: float, job: Job) -> Sequence[Grant]:
        """A job came in."""
        ...

    def hear(self, now: float, report: StepReport) -> Sequence[Grant]:
        """A replica's step ended."""
        ...


class Straight:
    """No queue but the engine's own: every job goes to the one replica on arrival."""

    refused: Sequence[str] = ()

    def __init__(self, replica: str) -> None:
        self._replica = replica

    def arrive(self, now: float, job: Job) -> Sequence[Grant]:  # noqa: ARG002 - the port's signature
        """At once."""
        return [Grant(job, self._replica)]

    def hear(self, now: float, report: StepReport) -> Sequence[Grant]:  # noqa: ARG002 - the port's signature
        """Nothing waits here."""
        return ()


@dataclass(frozen=True, slots=True)
class FairnessSample:
    """The pool after a step: its spread and bound, and what each tenant was charged so far.

    `service` is in milli-units since the start, also of tenants forgotten meanwhile; `backlogged`
    names those who wait and are not held back by their own limits.
    """

    now: float
    spread: int
    bound: int
    backlogged: frozenset[str]
    service: Mapping[str, int]

    @property
    def num_backlogged(self) -> int:
        """How many tenants compete."""
        return len(self.backlogged)


@dataclass(slots=True)
class Fair:
    """The dispatcher in front of replicas, told what the gateway would tell it.

    Keeps a sample of the pool every `sample_every` reports. Terms are by tenant; a job of an
    unknown one is a KeyError.
    """

    dispatcher: Dispatcher
    terms: Mapping[str, TenantTerms]
    sample_every: int = 1
    samples: list[FairnessSample] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _emitted: Counter[str] = field(default_factory=Counter)
    _forgotten: Counter[str] = field(default_factory=Counter)
    _num_reports: int = 0

    def connect(self, replica: Replica) -> None:
        """Add a replica with the capacity that its engine would report."""
        capacity = ReplicaCapacity(
            replica.config.max_num_seqs, replica.stats().kv_tokens, replica.config.block_size
        )
        self._tell(events.ReplicaUp(0.0, replica.name, capacity))

    def arrive(self, now: float, job: Job) -> Sequence[Grant]:
        """Let the job wait its turn; its prefix prefers a replica."""
        self._jobs[job.job_id] = job
        return self._tell(
            events.Enqueued(
                now,
                job.job_id,
                job.tenant,
                self.terms[job.tenant],
                job.num_prompt_tokens,
                job.declared_tokens,
                affinity=job.prompt[0].stream,
            )
        )

    def hear(self, now: float, report: StepReport) -> Sequence[Grant]:
        """Report hits, tokens and ends, in that order, then sample the pool."""
        grants: list[Grant] = []
        for admission in report.admitted:
            num_prompt = self._jobs[admission.request_id].num_prompt_tokens
            cached = admission.num_cached_tokens
            grants += self._tell(events.Corrected(now, admission.request_id, num_prompt, cached))
        for token in report.emitted:
            request = token.request_id
            self._emitted[request] += 1
            kind = events.Emitted if token.finish_reason is None else events.Finished
            grants += self._tell(kind(now, request, self._emitted[request]))
            if token.finish_reason is not None:
                del self._jobs[request], self._emitted[request]
        self._num_reports += 1
        if self._num_reports % self.sample_every == 0:
            self._sample(now)
        return grants

    def _tell(self, event: events.Input) -> list[Grant]:
        grants: list[Grant] = []
        for effect in self.dispatcher.apply(event):
            if isinstance(effect, events.Granted | events.Dispatched):
                grants.append(Grant(self._jobs[effect.request], effect.replica))
            elif isinstance(effect, events.Refused | events.Expired):
                del self._jobs[effect.request]
                self.refused.append(effect.request)
            elif isinstance(effect, events.Forgotten):
                self._forgotten[effect.tenant] += effect.service_milli
        return grants

    def _sample(self, now: float) -> None:
        pool = self.dispatcher.snapshot()
        service = Counter(self._forgotten)
        service.update({tenant.tenant: tenant.service_milli for tenant in pool.tenants})
        self.samples.append(
            FairnessSample(
                now,
                pool.spread,
                pool.spread_bound,
                frozenset(tenant.tenant for tenant in pool.tenants if tenant.backlogged),
                dict(service),
            )
        )
