"""A KV cache driven by hand, over a strict runner and beside a naive twin that reads the tokens."""

from collections.abc import Sequence

from engine.core.batch import BlockCopy, ScheduledBatch, ScheduledRow
from engine.core.config import CoreConfig
from engine.core.kv_cache import KVCache
from engine.core.request import NO_BLOCK, Request, SamplingParams
from engine.runner.fake import FakeRunner

VOCAB = 1000


def cache_config(num_blocks: int, **changes) -> CoreConfig:
    values = {"max_model_len": 4096, "model_digest": bytes(32)} | changes
    return CoreConfig(num_blocks=num_blocks, **values)


def request(
    request_id: str,
    prompt: Sequence[int],
    namespace: str = "tenant-a",
    *,
    output: Sequence[int] = (),
    prompt_logprobs: int | None = None,
    **changes,
) -> Request:
    sampling = SamplingParams(max_tokens=1000, prompt_logprobs=prompt_logprobs)
    wanted = Request(request_id, tuple(prompt), sampling, namespace, **changes)
    wanted.output_token_ids.extend(output)
    return wanted


def known(wanted: Request) -> list[int]:
    return [*wanted.prompt_token_ids, *wanted.output_token_ids]


class TokenTwin:
    """Which block of which group holds which prefix, by the tokens instead of by hash."""

    def __init__(self, block_size: int, windows: Sequence[int | None]) -> None:
        self._block_size = block_size
        self._windows = windows
        self._blocks: dict[tuple[int, str, tuple[int, ...]], int] = {}

    def forget(self, block_ids: Sequence[int]) -> None:
        self._blocks = {key: b for key, b in self._blocks.items() if b not in block_ids}

    def erase(self, namespace: str) -> int:
        erased = [block for key, block in self._blocks.items() if key[1] == namespace]
        self.forget(erased)
        return len(erased)

    def computed(self, wanted: Request, start: int, stop: int) -> None:
        """The first copy of a prefix is the one found; a later copy is never, even after it."""
        for group, table in enumerate(wanted.block_tables):
            for index in range(start // self._block_size, stop // self._block_size):
                prefix = tuple(known(wanted)[: (index + 1) * self._block_size])
                self._blocks.setdefault((group, wanted.namespace, prefix), table[index])

    def longest(self, namespace: str, token_ids: Sequence[int]) -> tuple[list[int], ...]:
        """By definition: the longest run of blocks that leaves no group without what it needs."""
        for length in range(len(token_ids) // self._block_size, -1, -1):
            tables = self._tables(namespace, token_ids, length)
            if None not in [block for table in tables for block in table]:
                return tables
        raise AssertionError("the empty prefix needs nothing")

    def _tables(self, namespace, token_ids, length):
        position = length * self._block_size
        tables = []
        for group, window in enumerate(self._windows):
            table = []
            for index in range(length):
                last = (index + 1) * self._block_size - 1
                if window is not None and last <= position - window:
                    table.append(NO_BLOCK)
                else:
                    prefix = tuple(token_ids[: last + 1])
                    table.append(self._blocks.get((group, namespace, prefix)))
            tables.append(table)
        return tuple(tables)


class CacheRig:
    """The cache, the requests that hold its blocks, and the checks after every operation."""

    def __init__(self, settings: CoreConfig) -> None:
        self.config = settings
        self.cache = KVCache(settings)
        self.pool = self.cache.pool
        self.holders: dict[str, Request] = {}
        self.runner = FakeRunner(
            settings.num_blocks, settings.block_size, VOCAB, windows=settings.windows
        )
        self.twin = TokenTwin(settings.block_size, settings.windows)
        self._copies: dict[str, tuple[BlockCopy, ...]] = {}
        self._step = 0
        allocate = self.pool.allocate

        def watched_allocate(*arguments):
            taken = allocate(*arguments)
            self.twin.forget(taken)
            return taken

        self.pool.allocate = watched_allocate

    def admit(self, wanted: Request, reserve: int = 0) -> bool:
        """Admit, comparing the hits with the twin's; a refusal must change nothing."""
        hits = [[] for _ in self.config.windows]
        if self.cache.looks_up(wanted):
            hits = list(self.twin.longest(wanted.namespace, known(wanted)[:-1]))
        before = self.state()
        if not self.cache.admit(wanted, reserve):
            assert self.state() == before
            assert not wanted.block_tables
            return False
        self.holders[wanted.request_id] = wanted
        assert [table[: len(hits[0])] for table in wanted.block_tables] == hits
        assert wanted.num_computed_tokens == len(hits[0]) * self.config.block_size
        self.check()
        return True

    def fork(self, sibling: Request, wanted: Request, reserve: int = 0):
        """Fork; the copies wait for the request's next row. A refusal must change nothing."""
        before = self.state()
        copies = self.cache.fork(sibling, wanted, reserve)
        if copies is None:
            assert self.state() == before
            assert not wanted.block_tables
            return None
        self.holders[wanted.request_id] = wanted
        self._copies[wanted.request_id] = copies
        self.check()
        return copies

    def compute(self, wanted: Request, count: int | None = None) -> bool:
        """Compute the next `count` tokens, or all; sample if none is left. False: no block idle."""
        if wanted.num_pending_tokens == 1 and not self.cache.extend(wanted):
            return False
        start = wanted.num_computed_tokens
        stop = wanted.num_tokens if count is None else min(wanted.num_tokens, start + count)
        samples = stop == wanted.num_tokens
        row = ScheduledRow(
            wanted.request_id,
            known(wanted)[start:stop],
            start,
            wanted.block_tables,
            wanted.sampling,
            samples,
            wanted.prompt_token_ids,
            wanted.output_token_ids,
        )
        self._step += 1
        copies = self._copies.pop(wanted.request_id, ())
        output = self.runner.execute(ScheduledBatch(self._step, (row,), stop - start, copies))
        wanted.num_computed_tokens = stop
        if self.cache.caches(wanted):
            self.twin.computed(wanted, start, stop)
        self.cache.commit(wanted)
        if samples:
            wanted.output_token_ids.append(output.sampled[wanted.request_id].token_id)
        self.check()
        return True

    def run(self, wanted: Request) -> Request:
        """Admit and compute all that is known."""
        assert self.admit(wanted)
        assert self.compute(wanted)
        return wanted

    def free(self, *requests: Request) -> None:
        """Take the requests' blocks; they may be admitted again."""
        for wanted in requests:
            self.cache.free(wanted)
            wanted.num_computed_tokens = 0
            self.holders.pop(wanted.request_id, None)
            self._copies.pop(wanted.request_id, None)
        self.check()

    def state(self) -> tuple[list[int], list[int]]:
        """Reference counts and the order of allocation."""
        counts = [self.pool.ref_count(block) for block in range(self.config.num_blocks)]
        return counts, self.pool.eviction_order()

    def check(self) -> None:
        pool = self.pool
        self.cache.check_integrity(self.holders.values())
        assert pool.num_free + pool.num_cached + pool.num_held == pool.num_blocks
