"""One replica in virtual time: the real engine core, stepped by whoever holds the clock."""

from dataclasses import dataclass

from engine.core.batch import StepReport
from engine.core.config import CoreConfig
from engine.core.engine_core import CoreStats, EngineCore
from engine.sim.job import Job
from engine.sim.runner import SimRunner
from engine.sim.step_time import StepTime, StepWork

MODEL_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did, which the world knows `seconds` after it began; rows computed in it."""

    seconds: float
    report: StepReport
    num_rows: int


class Replica:
    """An engine core whose runner keeps `step_time`."""

    def __init__(self, name: str, config: CoreConfig, step_time: StepTime) -> None:
        self.name = name
        self.config = config
        self._idle_s = step_time.seconds(StepWork())
        self._runner = SimRunner(step_time)
        self._core = EngineCore(config, self._runner)

    def add(self, job: Job) -> None:
        """Hand the job to the core; raises what `EngineCore.add` raises."""
        self._core.add(job.request())

    def abort(self, job_id: str) -> bool:
        """End the job in any state; False if it is not here or has ended."""
        return self._core.abort(job_id)

    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return self._core.has_work()

    def stats(self) -> CoreStats:
        """The core's state and totals."""
        return self._core.stats()

    def step(self) -> Step:
        """Schedule, compute and account for one batch."""
        self._runner.forget()
        report = self._core.step()
        return Step(self._runner.spent_s or self._idle_s, report, self._runner.num_rows)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block is accounted for."""
        self._core.check_integrity()
