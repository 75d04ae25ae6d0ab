"""An engine core under watch: every step is checked against the rules the scheduler promises."""

from collections.abc import Sequence
from dataclasses import replace

from engine.core.batch import RunnerOutput, ScheduledBatch, ScheduledRow, StepReport
from engine.core.config import CoreConfig
from engine.core.engine_core import EngineCore
from engine.core.errors import RunnerContractError
from engine.core.request import NO_BLOCK, FinishReason, Request, RequestStatus, SamplingParams
from engine.runner.fake import FakeRunner, hashed_token, seeded
from tests.engine.core.referee import Referee

VOCAB = 50
next_token = hashed_token(VOCAB)
choose = seeded(VOCAB)


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
    **sampling,
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=frozenset(stop), **sampling)
    return Request(request_id, tuple(prompt), params, namespace, use_cache=use_cache)


def samples(name: str, count: int, prompt: Sequence[int], *rest, **changes) -> list[Request]:
    """`count` samples of one prompt, each with a seed of its own."""
    return [
        request(f"{name}/{index}", prompt, *rest, seed=index, **changes) for index in range(count)
    ]


def tokens(count: int, seed: int = 0) -> tuple[int, ...]:
    """Some prompt of `count` tokens; different for every seed from the first token on."""
    return tuple((seed + 7 * index * (seed + 1)) % VOCAB for index in range(count))


def expected_output(wanted: Request, max_sequence_tokens: int) -> tuple[list[int], FinishReason]:
    """What the request must produce, whatever runs beside it."""
    known, output = list(wanted.prompt_token_ids), []
    while True:
        output.append(choose(next_token(known + output), len(output), wanted.sampling))
        stops = output[-1] in wanted.sampling.stop_token_ids
        if stops and len(output) >= wanted.sampling.min_tokens:
            return output, FinishReason.STOP
        if (
            len(output) == wanted.sampling.max_tokens
            or len(known) + len(output) >= max_sequence_tokens
        ):
            return output, FinishReason.LENGTH


def rank(known: Sequence[int], token_id: int) -> int:
    """The rank that the fake runner gives the token after these."""
    return (token_id - next_token(known)) % VOCAB + 1


def full_house(rig: "Rig") -> None:
    """Three requests of 2 blocks each that fill the pool and all need a third block next."""
    for index in range(3):
        rig.add(request(f"r{index}", tokens(31, seed=index), max_tokens=30))
    rig.step()
    rig.step()
    assert rig.pool.num_idle == 0


class NaivePrefixCache:
    """Which block holds which prefix, by the tokens themselves instead of by hash."""

    def __init__(self, block_size: int, windows: Sequence[int | None]) -> None:
        self._block_size = block_size
        self._windows = windows
        self._blocks: dict[tuple[int, str, tuple[int, ...]], int] = {}

    def allocated(self, block_ids: Sequence[int]) -> None:
        for prefix in [key for key, block in self._blocks.items() if block in block_ids]:
            del self._blocks[prefix]

    def erased(self, namespace: str) -> None:
        for prefix in [key for key in self._blocks if key[1] == namespace]:
            del self._blocks[prefix]

    def computed(self, wanted: Request, row: ScheduledRow) -> None:
        """The first copy of a prefix is the one found; a later copy is never, even after it."""
        known = (*wanted.prompt_token_ids, *wanted.output_token_ids)
        stop, size = row.start + len(row.token_ids), self._block_size
        for group, table in enumerate(row.block_tables):
            for index in range(row.start // size, stop // size):
                prefix = (group, wanted.namespace, known[: (index + 1) * size])
                self._blocks.setdefault(prefix, table[index])

    def hits(self, wanted: Request) -> tuple[list[int], ...]:
        """The longest prefix of whole blocks after which every window is covered."""
        known = (*wanted.prompt_token_ids, *wanted.output_token_ids)
        size = self._block_size
        limit = (len(known) - 1) // size
        prefixes = [(wanted.namespace, known[: (index + 1) * size]) for index in range(limit)]
        found = [
            [self._blocks.get((group, *prefix)) for prefix in prefixes]
            for group in range(len(self._windows))
        ]
        for length in range(limit, 0, -1):
            tables = []
            for group, window in enumerate(self._windows):
                first = 0 if window is None else max(0, length * size - window + 1) // size
                tables.append([NO_BLOCK] * first + found[group][first:length])
            if all(None not in table for table in tables):
                return tuple(tables)
        return tuple([] for _ in self._windows)


class Rig:
    """A core, its strict runner, and the checks made at each step."""

    def __init__(self, settings: CoreConfig, preemption=None) -> None:
        self.config = settings
        self.forced = Forced()
        self.requests: dict[str, Request] = {}
        self.batches: list[ScheduledBatch] = []
        self.reports: list[StepReport] = []
        self.broken: set[str] = set()  # requests whose rows the runner cannot compute
        self.unsampled: set[str] = set()  # requests for which it cannot choose a token
        self.cut: set[str] = set()  # requests that failed on demand
        self.executions = 0
        self._runner = FakeRunner(
            settings.num_blocks,
            settings.block_size,
            VOCAB,
            choose=choose,
            windows=settings.windows,
        )
        self.core = EngineCore(settings, self, preemption or self.forced)
        self.pool = self.core._kv_cache.pool
        self.running = self.core._scheduler._running
        self._found: BaseException | None = None
        self._forces = preemption is not None
        self._scores: dict[object, dict[int, object]] = {}  # by family and prompt position
        self._twin = NaivePrefixCache(settings.block_size, settings.windows)
        self._watch()
        self._referee = Referee(settings, self.core._scheduler, self.pool)

    def add(self, wanted: Request, *siblings: Request) -> Request:
        """Add a request, or all samples of one prompt; the first of them."""
        self.core.add(wanted, *siblings)
        self.requests |= {added.request_id: added for added in (wanted, *siblings)}
        return wanted

    def known(self, wanted: Request) -> list[int]:
        return [*wanted.prompt_token_ids, *wanted.output_token_ids]

    def erase(self, namespace: str) -> int:
        erased = self.core.erase(namespace)
        self._twin.erased(namespace)
        return erased

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """The runner's side of the step; the core must not swallow what is found wrong here."""
        self.executions += 1
        try:
            return self._execute(batch)
        except RunnerDownError:
            raise
        except BaseException as error:
            self._found = self._found or error
            raise

    def _execute(self, batch: ScheduledBatch) -> RunnerOutput:
        if not self.batches or self.batches[-1].step != batch.step:
            self.batches.append(batch)
            self._referee.check_batch(batch)
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
        forced = self._forces or bool(self.forced.request_ids)
        before = oldest.num_computed_tokens if oldest else 0
        self._referee.begin_step(may_force=forced)
        report = self.core.step()
        if self._found is not None:
            raise self._found
        self.reports.append(report)
        self.check()
        self._check_report(report)
        if not forced:
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

    def rows(self) -> list[tuple[str, int, int]]:
        """The last batch as (request, start, number of tokens)."""
        return [(row.request_id, row.start, len(row.token_ids)) for row in self.batches[-1].rows]

    def run(self, wanted: Request, *siblings: Request) -> Request:
        self.add(wanted, *siblings)
        self.drain()
        return wanted

    def assert_output(self, wanted: Request) -> None:
        output, reason = expected_output(wanted, self.config.max_sequence_tokens)
        assert (wanted.output_token_ids, wanted.finish_reason) == (output, reason)
        if wanted.sampling.prompt_logprobs is not None:
            positions = range(1, len(wanted.prompt_token_ids))
            assert sorted(self._scores.get(wanted.family, ())) == list(positions)

    def _check_report(self, report: StepReport) -> None:
        """Errors are those asked for; scores are right, and none comes a second time."""
        rows = self.batches[-1].rows if report.num_batch_tokens else ()
        scheduled = {row.request_id for row in rows}
        assert {admission.request_id for admission in report.admitted} <= scheduled
        if report.num_preempted:
            assert not report.admitted
        for failure in report.failed:
            if not isinstance(failure.error, RunnerDownError | RunnerContractError):
                raise failure.error
            self.cut.add(failure.request_id)
        for part in report.scored:
            wanted = self.requests[part.request_id]
            scores = self._scores.setdefault(wanted.family, {})
            for position, score in enumerate(part.logprobs, part.start):
                assert position not in scores
                scores[position] = score
                prompt = wanted.prompt_token_ids
                assert score.token_id == prompt[position]
                assert score.rank == rank(prompt[:position], score.token_id)
                assert len(score.top) == wanted.sampling.prompt_logprobs
        for token in report.emitted:
            wanted = self.requests[token.request_id]
            assert (token.logprobs is None) == (wanted.sampling.logprobs is None)
            if token.logprobs is not None:
                known = [*wanted.prompt_token_ids, *wanted.output_token_ids[:-1]]
                assert token.logprobs.rank == rank(known, token.token_id)

    def _watch(self) -> None:
        """Compare every lookup with the twin, and check the reserve at every admission."""
        cache, pool = self.core._kv_cache, self.pool
        allocate, lookup, release_pins = pool.allocate, cache.lookup, cache.release_pins

        def watched_allocate(*arguments):
            taken = allocate(*arguments)
            self._twin.allocated(taken)
            return taken

        def watched_lookup(wanted):
            hits = lookup(wanted)
            looks_up = wanted.use_cache and wanted.sampling.prompt_logprobs is None
            allowed = self.config.prefix_cache and looks_up
            empty = tuple([] for _ in self.config.windows)
            assert hits == (self._twin.hits(wanted) if allowed else empty)
            return hits

        def watched_release_pins():
            assert not any(cache.frees_a_block(newer) for newer in self.running[1:])
            return release_pins()

        pool.allocate, cache.lookup = watched_allocate, watched_lookup
        cache.admit = self._guarded(cache.admit, bool)
        cache.fork = self._guarded(cache.fork, lambda placed: placed is not None)
        cache.release_pins = watched_release_pins

    def _guarded(self, place, succeeded):
        """A placement that takes nothing when it fails, and leaves the reserve when it succeeds."""
        pool = self.pool

        def watched(*arguments):
            wanted = arguments[-2]
            runs = bool(self.running)
            order, held = pool.eviction_order(), pool.num_held
            placed = place(*arguments)
            if not succeeded(placed):
                assert (pool.eviction_order(), pool.num_held) == (order, held)
                assert not wanted.block_tables
            elif runs:
                assert pool.num_idle >= self.core.stats().reserve_blocks
            return placed

        return watched
