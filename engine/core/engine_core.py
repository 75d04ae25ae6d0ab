"""The engine as its server sees it: add requests, step, abort; one thread, no clock, no I/O.

`EngineCore` joins the scheduler (who runs, and where their blocks live) and a runner (what the
model answers). Every call belongs to the thread that steps it. Between two calls the accounting
is whole: free + cached + held blocks = total.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.batch import StepReport
from engine.core.config import CoreConfig
from engine.core.execution import execute
from engine.core.kv_cache import KVCache
from engine.core.ports import ModelRunner
from engine.core.preemption import PreemptionPolicy, PreemptWhenFull
from engine.core.request import FinishReason, Request
from engine.core.scheduler import Scheduler

__all__ = ["CoreConfig", "CoreStats", "EngineCore"]


@dataclass(frozen=True, slots=True)
class CoreStats:
    """The engine's state and totals as plain integers.

    free + cached + held blocks = total. `kv_tokens` is what the blocks beyond the configured
    reserve hold: the governor moves `reserve_blocks`, but not what fits an idle engine.
    Prefix counts include each prompt once; preempted re-runs appear as `recomputed_tokens`.
    `no_progress_steps` computed nothing though there was work, `stalled_steps` of them in a row
    until now. `pinned_blocks` are the held or cached ones that cannot be evicted, `copied_blocks`
    those copied for a sample before it wrote to them.
    """

    running: int
    waiting: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int
    total_blocks: int
    pinned_blocks: int
    reserve_blocks: int
    kv_tokens: int
    preemptions: int
    computed_tokens: int
    recomputed_tokens: int
    copied_blocks: int
    evicted_blocks: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    no_progress_steps: int
    stalled_steps: int


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
        self._stalled_steps = 0

    def add(self, *requests: Request) -> None:
        """Accept a new request, or all samples of one prompt; they wait until a step admits them.

        Raises NeverFits, QueueFull or DuplicateRequest (ValueError if the prompts differ or are
        empty), and then keeps none. Each position of a prompt is scored once, for the sample that
        computed it.
        """
        self._scheduler.add(*requests)

    def abort(self, request_id: str) -> bool:
        """End a request in any state, its blocks back at once; False if unknown or ended."""
        return self._scheduler.end(request_id, FinishReason.ABORT)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request for a reason the core cannot see (a stop string); idempotent."""
        self._scheduler.end(request_id, reason)

    def pin(self, namespace: str, token_ids: Sequence[int]) -> int:
        """Keep what is cached of this prefix from being evicted; how many tokens that is.

        Raises PinLimit, pinning nothing, if too much would be pinned.
        """
        return self._kv_cache.pin(namespace, token_ids)

    def unpin(self, namespace: str, token_ids: Sequence[int]) -> int:
        """Undo `pin` of the same tokens; how many were pinned."""
        return self._kv_cache.unpin(namespace, token_ids)

    def erase(self, namespace: str) -> int:
        """Forget the namespace's cached blocks, pinned ones too; how many.

        Raises NamespaceInUse, erasing nothing, while a request of the namespace runs.
        """
        return self._kv_cache.erase(namespace)

    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._scheduler.requests)

    def step(self) -> StepReport:
        """Schedule, compute and account for one batch.

        A request for which any of it fails has ended with `error` and is in the report's
        `failed`; nothing it computed in this step is cached. The others do not notice.
        """
        schedule = self._scheduler.schedule()
        outcome = execute(self._runner, schedule.batch)
        report = self._scheduler.update(schedule, outcome)
        stalled = report.num_batch_tokens == 0 and self.has_work()
        self._stalled_steps = self._stalled_steps + 1 if stalled else 0
        self._no_progress_steps += stalled
        return report

    def stats(self) -> CoreStats:
        """State and totals now."""
        pool, counts = self._kv_cache.pool, self._scheduler.counts
        return CoreStats(
            running=self._scheduler.num_running,
            waiting=self._scheduler.num_waiting,
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            held_blocks=pool.num_held,
            total_blocks=pool.num_blocks,
            pinned_blocks=pool.num_pinned,
            reserve_blocks=self._scheduler.reserve_blocks,
            kv_tokens=self.config.tokens_in(pool.num_blocks - self.config.reserve_blocks),
            preemptions=counts.preemptions,
            computed_tokens=counts.computed_tokens,
            recomputed_tokens=counts.recomputed_tokens,
            copied_blocks=counts.copied_blocks,
            evicted_blocks=pool.num_evictions,
            prefix_query_tokens=counts.prefix_query_tokens,
            prefix_hit_tokens=counts.prefix_hit_tokens,
            no_progress_steps=self._no_progress_steps,
            stalled_steps=self._stalled_steps,
        )

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block is accounted for. O(blocks): for when idle."""
        self._kv_cache.check_integrity(self._scheduler.requests.values())
