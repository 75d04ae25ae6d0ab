"""A run that is disturbed: clients give up, replicas crash or join, limits change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from engine.sim.gateway import SimGateway
from engine.sim.job import Job
from engine.sim.replica import Replica, Step
from engine.sim.simulation import Simulation
from engine.sim.trace import Trace
from engine.sim.workload import Workload
from fairness.types import TenantTerms

TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Lose:
    """The replica crashes at `when`, in the middle of whatever it does."""

    when: float
    replica: str


@dataclass(frozen=True, slots=True)
class Join:
    """A replica, of a name that no other had before, comes up at `when`."""

    when: float
    replica: Replica


@dataclass(frozen=True, slots=True)
class Change:
    """A tenant's terms are changed at `when`."""

    when: float
    tenant: str
    terms: TenantTerms


Incident = Lose | Join | Change


@dataclass(frozen=True, slots=True)
class Patience:
    """When a client leaves: with so many tokens, or so many seconds after asking without any."""

    tokens: float = inf
    seconds: float = inf


STAYS = Patience()


@dataclass(slots=True)
class Ends:
    """Jobs that did not end by themselves: whose client left, and whose replica crashed."""

    left: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)


class DisturbedSimulation(Simulation):
    """One run with incidents, and with the patience of some jobs' clients, by job.

    A client's leaving reaches the engine as its step ends, as an abort does. A job whose replica
    crashed before it began waits again; one that had begun is cut. The dispatcher is told the time
    four times a second.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        workload: Workload,
        gateway: SimGateway,
        incidents: Sequence[Incident] = (),
        patience: Mapping[str, Patience] | None = None,
    ) -> None:
        joining = [one.replica for one in incidents if isinstance(one, Join)]
        super().__init__([*replicas, *joining], workload, gateway)
        self.ends = Ends()
        self._gateway = gateway
        self._patience = patience or {}
        self._gone: set[str] = set()
        self._leaving: set[str] = set()
        for incident in incidents:
            self._time.at(incident.when, self._happening(incident))

    def run(self, until: float = inf) -> Trace:
        """As any run; time is told only before `until`, so that a run without one can end."""
        for number in range(1, 1 + (int(until / TICK_S) if until < inf else 0)):
            self._time.at(number * TICK_S, self._tick)
        return super().run(until)

    def _tick(self) -> None:
        self._send(self._gateway.tick(self._time.now))

    def _happening(self, incident: Incident) -> Callable[[], None]:
        def happen() -> None:
            now = self._time.now
            match incident:
                case Join():
                    self._send(self._gateway.join(now, incident.replica))
                case Change():
                    self._send(self._gateway.change(now, incident.tenant, incident.terms))
                case Lose():
                    self._lose(incident.replica)

        return happen

    def _lose(self, replica: str) -> None:
        self._gone.add(replica)
        grants, cut = self._gateway.lose(self._time.now, replica)
        for job in cut:
            self.ends.cut.add(job.job_id)
            self._expect(self._workload.after(job, self._time.now))
        self._send(grants)

    def _arriving(self, job: Job) -> Callable[[], None]:
        arrive = super()._arriving(job)
        seconds = self._patience.get(job.job_id, STAYS).seconds

        def arrive_and_wait() -> None:
            arrive()
            if seconds < inf:
                self._time.at(self._time.now + seconds, lambda: self._lose_patience(job.job_id))

        return arrive_and_wait

    def _lose_patience(self, job_id: str) -> None:
        if self._gateway.waits(job_id):
            self._let_go(job_id)
        elif self._gateway.runs(job_id) and not self._jobs[job_id].token_times:
            self._leaving.add(job_id)

    def _begin_step(self, replica: Replica) -> None:
        if replica.name not in self._gone:
            super()._begin_step(replica)

    def _end_step(self, replica: Replica, step: Step) -> None:
        if replica.name in self._gone:
            return
        super()._end_step(replica, step)
        emitted = (token.request_id for token in step.report.emitted)
        self._abort(replica, self._leaving.union(filter(self._has_enough, emitted)))

    def _has_enough(self, job_id: str) -> bool:
        tokens = self._patience.get(job_id, STAYS).tokens
        return len(self._jobs[job_id].token_times) >= tokens

    def _abort(self, replica: Replica, job_ids: Iterable[str]) -> None:
        for job_id in sorted(job_ids):
            if replica.abort(job_id):
                self._let_go(job_id)

    def _let_go(self, job_id: str) -> None:
        self._leaving.discard(job_id)
        self.ends.left.add(job_id)
        self._send(self._gateway.leave(self._time.now, job_id))
        self._expect(self._workload.after(self._jobs[job_id].job, self._time.now))
