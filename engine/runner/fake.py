"""A runner without a model: its next token is a function of the token ids so far.

It is as strict as a real one is blind. It keeps a simulated KV memory, by block and slot, in which
every slot stands for one exact history, and refuses a batch whose rows could not have been
computed correctly: a position within the window that no block holds, a block that holds another
sequence's tokens or another group's layers, one that two rows write, a copy that somebody missed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate
from math import log

from engine.core.batch import Logprobs, RunnerOutput, SampledToken, ScheduledBatch, ScheduledRow
from engine.core.request import NO_BLOCK, SamplingParams

NextToken = Callable[[Sequence[int]], int]
Choice = Callable[[int, int, SamplingParams], int]
"""The token to emit, from the most likely one, the output's index and how to sample."""

_ROOT = 0


class FakeRunnerError(Exception):
    """The batch breaks the contract between scheduler and runner."""


def hashed_token(vocab_size: int) -> NextToken:
    """A next-token function that depends on every token so far, in order."""

    def next_token(token_ids: Sequence[int]) -> int:
        digest = sha256(b"".join(token.to_bytes(4, "big") for token in token_ids)).digest()
        return int.from_bytes(digest[:8], "big") % vocab_size

    return next_token


def greedy(most_likely: int, index: int, params: SamplingParams) -> int:  # noqa: ARG001 - a Choice
    """Always the most likely token."""
    return most_likely


def seeded(vocab_size: int) -> Choice:
    """A choice that depends on the seed and the output's index, as real sampling does."""

    def choose(most_likely: int, index: int, params: SamplingParams) -> int:
        return hash((most_likely, index, params.seed)) % vocab_size  # of integers: repeatable

    return choose


class FakeRunner:
    """Implements ModelRunner, for page groups with these `windows`, as in CoreConfig.

    As a distribution, the token after the most likely one (modulo the vocabulary) is half as
    likely, and so on; so the token of rank r has probability 2**-r.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        vocab_size: int = 1000,
        next_token: NextToken | None = None,
        *,
        choose: Choice = greedy,
        windows: Sequence[int | None] = (None,),
    ) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._next_token = next_token or hashed_token(vocab_size)
        self._choose = choose
        self._windows = windows
        self._memory: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self._group: list[int | None] = [None] * num_blocks

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """Make the copies, write every row's tokens, answer where asked. Raises FakeRunnerError."""
        self._check_batch(batch)
        for copy in batch.copies:
            self._memory[copy.target] = list(self._memory[copy.source])
            self._group[copy.target] = self._group[copy.source]
        sampled: dict[str, SampledToken] = {}
        scored: dict[str, tuple[Logprobs, ...]] = {}
        for row in batch.rows:
            tokens = [*row.prompt_token_ids, *row.output_token_ids]
            self._compute(row, tokens)
            if row.samples:
                sampled[row.request_id] = self._sample(row, tokens)
            if row.scored:
                scored[row.request_id] = tuple(
                    self._logprobs(tokens[:position], tokens[position], row.params.prompt_logprobs)
                    for position in row.scored
                )
        return RunnerOutput(sampled, scored)

    def _check_batch(self, batch: ScheduledBatch) -> None:
        if batch.num_tokens != sum(len(row.token_ids) for row in batch.rows):
            raise FakeRunnerError("num_tokens is not the sum of the rows")
        if len({row.request_id for row in batch.rows}) != len(batch.rows):
            raise FakeRunnerError("a request has two rows")
        users: Counter[int] = Counter()
        for row in batch.rows:
            self._check_row(row)
            users.update(block for table in row.block_tables for block in table)
        for row in batch.rows:
            for block_id in self._written_blocks(row):
                if users[block_id] != 1:
                    raise FakeRunnerError(f"block {block_id} is written, but in two tables")
        sources, targets = {c.source for c in batch.copies}, {c.target for c in batch.copies}
        if sources & targets or len(targets) != len(batch.copies):
            raise FakeRunnerError("one copy's target is another's source or target")
        if not sources <= set(range(len(self._memory))) or any(users[t] != 1 for t in targets):
            raise FakeRunnerError("a copy is from nowhere or for no row, or for two")

    def _check_row(self, row: ScheduledRow) -> None:
        name, stop = row.request_id, row.start + len(row.token_ids)
        known = [*row.prompt_token_ids, *row.output_token_ids]
        if not row.token_ids or row.start < 0:
            raise FakeRunnerError(f"{name}: nothing to compute")
        if list(row.token_ids) != known[row.start : stop]:
            raise FakeRunnerError(f"{name}: the row's tokens are not the request's")
        if row.samples != (stop == len(known)):
            raise FakeRunnerError(f"{name}: samples is for the last known token, and only that")
        last = min(stop, len(row.prompt_token_ids) - 1)
        if row.scored and not row.start < row.scored.start < row.scored.stop <= last + 1:
            raise FakeRunnerError(f"{name}: a position is to be scored that the row does not reach")
        if not all(0 <= token < self._vocab_size for token in row.token_ids):
            raise FakeRunnerError(f"{name}: a token id is outside the vocabulary")
        self._check_tables(row, stop)

    def _check_tables(self, row: ScheduledRow, stop: int) -> None:
        blocks = [block for table in row.block_tables for block in table if block != NO_BLOCK]
        if len(set(blocks)) != len(blocks) or not set(blocks) <= set(range(len(self._memory))):
            raise FakeRunnerError(f"{row.request_id}: the block tables are not sets of blocks")
        for table, window in zip(row.block_tables, self._windows, strict=True):
            if len(table) * self._block_size < stop:
                raise FakeRunnerError(f"{row.request_id}: a block table is too short")
            if NO_BLOCK in table[_first_needed(row.start, window) // self._block_size :]:
                raise FakeRunnerError(f"{row.request_id}: a block in the window is gone")

    def _written_blocks(self, row: ScheduledRow) -> Sequence[int]:
        first = row.start // self._block_size
        last = (row.start + len(row.token_ids) - 1) // self._block_size
        return [block for table in row.block_tables for block in table[first : last + 1]]

    def _compute(self, row: ScheduledRow, tokens: Sequence[int]) -> None:
        """Check every earlier position that the row attends to, and write its own, per group."""
        stop = row.start + len(row.token_ids)
        states = list(accumulate(tokens[:stop], _following, initial=_ROOT))[1:]
        for group, table in enumerate(row.block_tables):
            needed = _first_needed(row.start, self._windows[group])
            for block_id, slots, positions in self._parts(table, needed, row.start):
                held = self._memory[block_id][slots]
                if held != states[positions] or self._group[block_id] != group:
                    raise FakeRunnerError(
                        f"{row.request_id}: block {block_id} does not hold what "
                        f"position {positions.start} and on need"
                    )
            for block_id, slots, positions in self._parts(table, row.start, stop):
                self._memory[block_id][slots] = states[positions]
                self._group[block_id] = group

    def _parts(
        self, table: Sequence[int], start: int, stop: int
    ) -> Iterator[tuple[int, slice, slice]]:
        """The blocks of the positions start to stop - 1, with the slots and positions in each."""
        size = self._block_size
        while start < stop:
            end = min(stop, (start // size + 1) * size)
            slot = start % size
            yield table[start // size], slice(slot, slot + end - start), slice(start, end)
            start = end

    def _sample(self, row: ScheduledRow, tokens: Sequence[int]) -> SampledToken:
        params = row.params
        token_id = self._choose(self._next_token(tokens), len(row.output_token_ids), params)
        if params.logprobs is None:
            return SampledToken(token_id)
        return SampledToken(token_id, self._logprobs(tokens, token_id, params.logprobs))

    def _logprobs(self, tokens: Sequence[int], token_id: int, count: int | None) -> Logprobs:
        most_likely, size = self._next_token(tokens), self._vocab_size
        rank = (token_id - most_likely) % size + 1
        top = [((most_likely + index) % size, -(index + 1) * log(2)) for index in range(count or 0)]
        return Logprobs(token_id, -rank * log(2), rank, tuple(top))


def _following(state: int, token_id: int) -> int:
    """What a slot stands for: its token after the whole history before it."""
    return hash((state, token_id))  # of integers: the same in every process


def _first_needed(position: int, window: int | None) -> int:
    """The first position that the token at `position` attends to."""
    return 0 if window is None else max(0, position - window + 1)
