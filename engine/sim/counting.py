"""A replica that counts what its engine really computed, by tenant, repeats included."""

from collections import Counter
from dataclasses import dataclass, field

from engine.core.batch import RunnerOutput, ScheduledBatch
from engine.core.config import CoreConfig
from engine.core.engine_core import EngineCore
from engine.sim.job import Job
from engine.sim.replica import Replica
from engine.sim.runner import SimRunner
from engine.sim.step_time import StepTime


@dataclass(slots=True)
class Work:
    """Tokens by tenant: all that were computed, and those of them computed once before."""

    computed: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)


class CountingReplica(Replica):
    """A replica that writes down its work; several may share one `Work`."""

    def __init__(self, name: str, config: CoreConfig, step_time: StepTime, work: Work) -> None:
        super().__init__(name, config, step_time)
        self._tenants: dict[str, str] = {}
        self._runner = _CountingRunner(step_time, work, self._tenants)
        self._core = EngineCore(config, self._runner)

    def add(self, job: Job) -> None:
        """Hand the job to the core and know whose it is."""
        super().add(job)
        self._tenants[job.job_id] = job.tenant


class _CountingRunner(SimRunner):
    """Knows how far each request was computed before, so that it sees what is computed again."""

    def __init__(self, step_time: StepTime, work: Work, tenants: dict[str, str]) -> None:
        super().__init__(step_time)
        self._work = work
        self._tenants = tenants
        self._reached: dict[str, int] = {}

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """Count the batch, then answer it."""
        for row in batch.rows:
            tenant, end = self._tenants[row.request_id], row.start + len(row.token_ids)
            reached = self._reached.get(row.request_id, 0)
            self._work.computed[tenant] += len(row.token_ids)
            self._work.repeated[tenant] += max(0, min(end, reached) - row.start)
            self._reached[row.request_id] = max(end, reached)
        return super().execute(batch)
