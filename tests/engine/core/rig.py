"""An engine core under watch: every step is checked against the rules the scheduler promises."""

from collections.abc import Sequence
from dataclasses import replace

from engine.core.batch import RunnerOutput, ScheduledBatch, ScheduledRow, StepReport
from engine.core.config import CoreConfig
from engine.core.engine_core import EngineCore
from engine.core.errors import RunnerContractError
from engine.core.request import FinishReason, Request, RequestStatus, SamplingParams
from engine.runner.fake import FakeRunner, hashed_token

VOCAB = 50
next_token = hashed_token(VOCAB)


class RunnerDownError(Exception):
    """What the runner raises when told to fail."""


class Forced:
    """A preemption policy whose victims a test names; empty again after one step."""

    def __init__(self) -> None:
        self.request_ids: set[str] = set()

    def victims(self, step: int, running: Sequence[Request]) -> Sequence[Request]:
        chosen = [request for request in running if request.request_id in self.request_ids]
        self.request_ids = set()
        return chosen


def config(num_blocks: int, **changes) -> CoreConfig:
    values = {"max_model_len": 4096, "model_digest": bytes(32), "reserve": 0} | changes
    return CoreConfig(num_blocks=num_blocks, **values)


def request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 4,
    namespace: str = "tenant-a",
    *,
    stop: Sequence[int] = (),
    use_cache: bool = True,
) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset(stop))
    return Request(request_id, tuple(prompt), sampling, namespace, use_cache=use_cache)


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    """Some prompt of `count` tokens; different for every seed from the first token on."""
    return tuple((seed + 7 * index * (seed + 1)) % VOCAB for index in range(count))


def expected_output(wanted: Request, max_sequence_tokens: int) -> tuple[list[int], FinishReason]:
    """What the request must produce, whatever runs beside it."""
    known, output = list(wanted.prompt_token_ids), []
    while True:
        output.append(next_token(known + output))
        if output[-1] in wanted.sampling.stop_token_ids:
            return output, FinishReason.STOP
        if (
            len(output) == wanted.sampling.max_tokens
            or len(known) + len(output) >= max_sequence_tokens
        ):
            return output, FinishReason.LENGTH


class NaivePrefixCache:
    """Which block holds which prefix, by the tokens themselves instead of by hash."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[tuple[str, tuple[int, ...]], int] = {}

    def allocated(self, block_ids: Sequence[int]) -> None:
        for prefix in [key for key, block in self._blocks.items() if block in block_ids]:
            del self._blocks[prefix]

    def computed(self, wanted: Request, row: ScheduledRow) -> None:
        """The first copy of a prefix is the one found; a later copy is never, even after it."""
        known = (*wanted.prompt_token_ids, *wanted.output_token_ids)
        stop, size = row.start + len(row.token_ids), self._block_size
        for index in range(row.start // size, stop // size):
            prefix = (wanted.namespace, known[: (index + 1) * self._block_size])
            self._blocks.setdefault(prefix, row.block_tables[0][index])

    def hits(self, wanted: Request) -> list[int]:
        known = (*wanted.prompt_token_ids, *wanted.output_token_ids)
        found: list[int] = []
        for stop in range(self._block_size, len(known), self._block_size):
            block = self._blocks.get((wanted.namespace, known[:stop]))
            if block is None:
                break
            found.append(block)
        return found


class Rig:
    """A core, its strict runner, and the checks made at each step."""

    def __init__(self, settings: CoreConfig, preemption=None) -> None:
        self.config = settings
        self.forced = Forced()
        self.requests: dict[str, Request] = {}
        self.batches: list[ScheduledBatch] = []
        self.reports: list[StepReport] = []
        self.cut: set[str] = set()  # failed on demand
        self.broken: set[str] = set()  # requests whose rows the runner cannot compute
        self.unsampled: set[str] = set()  # requests for which it cannot choose a token
        self.executions = 0
        self._runner = FakeRunner(
            settings.num_blocks,
            settings.block_size,
            VOCAB,
            windows=settings.windows,
        )
        self.core = EngineCore(settings, self, preemption or self.forced)
        self.pool = self.core._kv_cache.pool
        self.running = self.core._scheduler._running
        self._twin = NaivePrefixCache(settings.block_size)
        self._watch()

    def known(self, wanted: Request) -> list[int]:
        return [*wanted.prompt_token_ids, *wanted.output_token_ids]

    def add(self, wanted: Request, *siblings: Request) -> Request:
        """Add a request, or all samples of one prompt; the first of them."""
        self.core.add(wanted, *siblings)
        self.requests |= {added.request_id: added for added in (wanted, *siblings)}
        return wanted

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """The runner's side of the step, with the batch's own rules checked first."""
        self.executions += 1
        if not self.batches or self.batches[-1].step != batch.step:
            self.batches.append(batch)
        assert batch.num_tokens <= self.config.max_num_batched_tokens
        assert len(self.running) <= self.config.max_num_seqs
        scheduled = [self.requests[row.request_id] for row in batch.rows]
        assert all(wanted.status is RequestStatus.RUNNING for wanted in scheduled)
        if self.broken & {row.request_id for row in batch.rows}:
            raise RunnerDownError
        output = self._runner.execute(batch)
        failed = {name: RunnerDownError() for name in self.unsampled & output.sampled.keys()}
        for wanted, row in zip(scheduled, batch.rows, strict=True):
            caches = self.config.prefix_cache and wanted.use_cache
            if caches and wanted.request_id not in failed:
                self._twin.computed(wanted, row)
        return replace(output, failed=failed)

    def step(self) -> StepReport:
        """One step; checks accounting, progress of the oldest and of the engine as a whole."""
        oldest = self.running[0] if self.running else None
        forced = bool(self.forced.request_ids)
        before = oldest.num_computed_tokens if oldest else 0
        report = self.core.step()
        self.reports.append(report)
        self.check()
        for failure in report.failed:
            if not isinstance(failure.error, RunnerDownError | RunnerContractError):
                raise failure.error
            self.cut.add(failure.request_id)
        rows = self.batches[-1].rows if report.num_batch_tokens else ()
        scheduled = {row.request_id for row in rows}
        assert {admission.request_id for admission in report.admitted} <= scheduled
        if report.num_preempted:
            assert not report.admitted
        if not forced and self.core._scheduler._preemption is self.forced:
            if oldest is not None and oldest.status is not RequestStatus.FINISHED:
                assert oldest.num_computed_tokens > before
            assert report.num_batch_tokens > 0 or not self.core.has_work()
        return report

    def check(self) -> None:
        self.core.check_integrity()
        stats = self.core.stats()
        assert stats.free_blocks + stats.cached_blocks + stats.held_blocks == stats.total_blocks
        assert stats.running + stats.waiting == len(self.core._scheduler.requests)
        assert stats.running == len(self.running)
        for wanted in self.core._scheduler.requests.values():
            if wanted.status is not RequestStatus.RUNNING:
                assert (wanted.num_computed_tokens, wanted.block_tables) == (0, ())

    def drain(self, max_steps: int = 5000) -> None:
        """Step until nothing is left; the bound makes a starved request a failure."""
        for _ in range(max_steps):
            if not self.core.has_work():
                return
            self.step()
        raise AssertionError("some request never ended")

    def run(self, wanted: Request) -> Request:
        self.add(wanted)
        self.drain()
        return wanted

    def assert_output(self, wanted: Request) -> None:
        output, reason = expected_output(wanted, self.config.max_sequence_tokens)
        assert (wanted.output_token_ids, wanted.finish_reason) == (output, reason)

    def _watch(self) -> None:
        """Compare every lookup with the twin, and check the reserve at every admission."""
        cache, pool = self.core._kv_cache, self.pool
        allocate, lookup, admit = pool.allocate, cache.lookup, cache.admit

        def watched_allocate(count):
            taken = allocate(count)
            self._twin.allocated(taken)
            return taken

        def watched_lookup(wanted):
            hits = lookup(wanted)
            allowed = self.config.prefix_cache and wanted.use_cache
            assert hits == (self._twin.hits(wanted) if allowed else [],)
            return hits

        def watched_admit(wanted, reserve_blocks):
            runs = bool(self.running)
            order, held = pool.eviction_order(), pool.num_held
            admitted = admit(wanted, reserve_blocks)
            if not admitted:
                assert (pool.eviction_order(), pool.num_held) == (order, held)
                assert not wanted.block_tables
            elif runs:
                assert pool.num_idle >= self.core._scheduler.reserve_blocks
            return admitted

        pool.allocate, cache.lookup, cache.admit = watched_allocate, watched_lookup, watched_admit
