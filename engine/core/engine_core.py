"""The engine as its server sees it: add requests, step, abort; one thread, no clock, no I/O.

`EngineCore` joins the scheduler (who runs, and where their blocks live) and a runner (what the
model answers). Every call belongs to the thread that steps it. Between two calls the accounting
is whole: free + cached + held blocks = total.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.batch import RunnerOutput, SampledToken, ScheduledBatch, StepReport
from engine.core.config import CoreConfig
from engine.core.errors import CoreError, StepFailed
from engine.core.kv_cache import KVCache
from engine.core.ports import ModelRunner
from engine.core.preemption import PreemptionPolicy, PreemptWhenFull
from engine.core.request import FinishReason, Request
from engine.core.scheduler import Scheduler

__all__ = ["CoreConfig", "CoreStats", "EngineCore"]


@dataclass(frozen=True, slots=True)
class CoreStats:
    """The engine's state and totals as plain integers.

    free + cached + held blocks = total; `kv_tokens` is what the blocks beyond the reserve hold.
    Prefix counts include each request once; preempted re-runs appear as `recomputed_tokens`.
    """

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int
    total_blocks: int
    reserve_blocks: int
    kv_tokens: int
    preemptions: int
    computed_tokens: int
    recomputed_tokens: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    no_progress_steps: int


class EngineCore:
    """Runs requests to their end, a step at a time."""

    def __init__(
        self,
        config: CoreConfig,
        runner: ModelRunner,
        preemption: PreemptionPolicy | None = None,
    ) -> None:
        self.config = config
        self._runner = runner
        self._kv_cache = KVCache(config)
        self._scheduler = Scheduler(config, self._kv_cache, preemption or PreemptWhenFull())
        self._no_progress_steps = 0

    def add(self, request: Request) -> None:
        """Accept a new request; it waits until a step admits it.

        Raises NeverFits, QueueFull or DuplicateRequest, and then keeps nothing.
        """
        self._scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """End a request in any state, its blocks back at once; False if unknown or ended."""
        return self._scheduler.end(request_id, FinishReason.ABORT)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request for a reason the core cannot see (a stop string); idempotent."""
        self._scheduler.end(request_id, reason)

    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._scheduler.requests)

    def step(self) -> StepReport:
        """Schedule, compute and account for one batch.

        Raises StepFailed, from its cause, when the runner fails: the batch's requests have
        then ended with `error`, nothing they computed in this step is cached, and the core goes on.
        """
        schedule = self._scheduler.schedule()
        batch = schedule.batch
        sampled: Mapping[str, SampledToken] = {}
        if batch.rows:
            try:
                sampled = _sampled(batch, self._runner.execute(batch))
            except Exception as error:
                ended = self._scheduler.end_all(schedule.requests, FinishReason.ERROR)
                raise StepFailed(ended) from error
        elif self.has_work():
            self._no_progress_steps += 1
        emitted = self._scheduler.update(schedule, sampled)
        return StepReport(
            batch.step, schedule.admitted, emitted, batch.num_tokens, schedule.num_preempted
        )

    def stats(self) -> CoreStats:
        """State and totals now."""
        pool, counts = self._kv_cache.pool, self._scheduler.counts
        reserve = self._scheduler.reserve_blocks
        return CoreStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            held_blocks=pool.num_held,
            total_blocks=pool.num_blocks,
            reserve_blocks=reserve,
            kv_tokens=(pool.num_blocks - reserve) * self.config.block_size,
            preemptions=counts.preemptions,
            computed_tokens=counts.computed_tokens,
            recomputed_tokens=counts.recomputed_tokens,
            prefix_query_tokens=counts.prefix_query_tokens,
            prefix_hit_tokens=counts.prefix_hit_tokens,
            no_progress_steps=self._no_progress_steps,
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block is accounted for; cheap enough when idle."""
        self._kv_cache.check_integrity(self._scheduler.requests.values())


class _RunnerContractError(CoreError):
    """The runner did not answer for every row that asked for a token."""


def _sampled(batch: ScheduledBatch, output: RunnerOutput) -> Mapping[str, SampledToken]:
    """The runner's tokens, once it is sure that none is missing."""
    for row in batch.rows:
        if row.samples and row.request_id not in output.sampled:
            raise _RunnerContractError(f"no token for request {row.request_id}")
    return output.sampled
