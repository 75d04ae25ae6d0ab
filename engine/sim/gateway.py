"""The fair queue as a whole gateway drives it: clients leave, replicas come and go, limits change.

It tells the dispatcher what `gateway/queue.py` would tell it, and keeps the dispatcher's effects.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.core.batch import StepReport
from engine.sim.job import Job
from engine.sim.queues import Fair, Grant
from engine.sim.replica import Replica
from fairness import events
from fairness.types import ReplicaCapacity, TenantTerms


@dataclass
class SimGateway(Fair):
    """`Fair`, and what a gateway does when a client leaves or a replica is lost.

    `_at` has the replica of every job in flight; `_began` are those that an engine has admitted.
    """

    effects: list[events.Effect] = field(default_factory=list)
    _at: dict[str, str] = field(default_factory=dict)
    _began: set[str] = field(default_factory=set)

    def arrive(self, now: float, job: Job) -> Sequence[Grant]:
        """Let the job wait its turn; what its prompt begins with is known by its first span."""
        self._jobs[job.job_id] = job
        beginning = job.prompt[0].stream
        return self._tell(
            events.Enqueued(
                now,
                job.job_id,
                job.tenant,
                self.terms[job.tenant],
                job.num_prompt_tokens,
                job.declared_tokens,
                affinity=beginning,
                prefix=(beginning,),
            )
        )

    def hear(self, now: float, report: StepReport) -> Sequence[Grant]:
        """As `Fair`, remembering whom an engine has begun."""
        self._began.update(admission.request_id for admission in report.admitted)
        grants = Fair.hear(self, now, report)
        self._over(one.request_id for one in report.emitted if one.finish_reason is not None)
        return grants

    def tick(self, now: float) -> Sequence[Grant]:
        """Time passed."""
        return self._tell(events.Ticked(now))

    def waits(self, job_id: str) -> bool:
        """Whether the job is in the queue, at no replica."""
        return job_id in self._jobs and job_id not in self._at

    def runs(self, job_id: str) -> bool:
        """Whether a replica has the job."""
        return job_id in self._at

    def leave(self, now: float, job_id: str) -> Sequence[Grant]:
        """Its client left, and no replica works on it any more: what was done is charged."""
        if self.waits(job_id):
            grants = self._tell(events.Cancelled(now, job_id))
        else:
            grants = self._tell(self._aborted(now, job_id))
        self._over([job_id])
        return grants

    def _aborted(self, now: float, job_id: str) -> events.Input:
        """What is told of a job that an engine has confirmed to have aborted."""
        return events.Finished(now, job_id, self._emitted[job_id])

    def join(self, now: float, replica: Replica) -> Sequence[Grant]:
        """A replica answers."""
        capacity = ReplicaCapacity(
            replica.config.max_num_seqs, replica.stats().kv_tokens, replica.config.block_size
        )
        return self._tell(events.ReplicaUp(now, replica.name, capacity))

    def lose(self, now: float, replica: str) -> tuple[Sequence[Grant], Sequence[Job]]:
        """A replica is gone: begun jobs end with an error, and are returned; others wait again."""
        there = [job_id for job_id, name in self._at.items() if name == replica]
        cut = [self._jobs[job_id] for job_id in there if job_id in self._began]
        # As in the gateway: no grant goes there while what cannot be retried is ended.
        grants = self._tell(events.ReplicaDrained(now, replica))
        for job in cut:
            emitted = self._emitted[job.job_id]
            if emitted:
                grants += self._tell(events.Finished(now, job.job_id, emitted))
            else:
                grants += self._tell(events.NotStarted(now, job.job_id))
        for job_id in there:
            del self._at[job_id]
        grants += self._tell(events.ReplicaLost(now, replica))
        self._over(job.job_id for job in cut)
        return grants, cut

    def change(self, now: float, tenant: str, terms: TenantTerms) -> Sequence[Grant]:
        """An administrator changed a tenant's weight or limits."""
        self.terms = {**self.terms, tenant: terms}
        return self._tell(events.TenantChanged(now, tenant, terms))

    def _over(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._jobs.pop(job_id, None)
            self._emitted.pop(job_id, None)
            self._at.pop(job_id, None)
            self._began.discard(job_id)

    def _tell(self, event: events.Input) -> list[Grant]:
        grants: list[Grant] = []
        for effect in self.dispatcher.apply(event):
            self.effects.append(effect)
            match effect:
                case events.Granted() | events.Dispatched():
                    self._at[effect.request] = effect.replica
                    grants.append(Grant(self._jobs[effect.request], effect.replica))
                case events.Refused() | events.Expired():
                    self._over([effect.request])
                    self.refused.append(effect.request)
                case events.Forgotten():
                    self._forgotten[effect.tenant] += effect.service_milli
                case _:
                    pass
        return grants
