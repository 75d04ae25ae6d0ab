"""A runner without a model: its next token is a function of the token ids so far.

It is as strict as a real one is blind. It keeps a simulated KV memory, by block and slot, and
refuses a batch whose rows could not have been computed correctly: a position without its
predecessors, a block that holds another sequence's tokens, or one that two rows write.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256

from engine.core.batch import RunnerOutput, SampledToken, ScheduledBatch, ScheduledRow

NextToken = Callable[[Sequence[int]], int]
_ROOT = 0


class FakeRunnerError(Exception):
    """The batch breaks the contract between scheduler and runner."""


def hashed_token(vocab_size: int) -> NextToken:
    """A next-token function that depends on every token so far, in order."""

    def next_token(token_ids: Sequence[int]) -> int:
        digest = sha256(b"".join(token.to_bytes(4, "big") for token in token_ids)).digest()
        return int.from_bytes(digest[:8], "big") % vocab_size

    return next_token


class _Slot:
    """What one position's keys and values stand for: a token after one exact history."""

    __slots__ = ("before", "position", "state", "token_id")

    def __init__(self, position: int, token_id: int, before: int) -> None:
        self.position = position
        self.token_id = token_id
        self.before = before
        self.state = hash((before, token_id))  # of integers: the same in every process


class FakeRunner:
    """Implements ModelRunner. `known_tokens`, if given, maps a request id to its true tokens.

    With it, every position a row attends to must hold exactly the request's own token.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        vocab_size: int = 1000,
        next_token: NextToken | None = None,
        known_tokens: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._next_token = next_token or hashed_token(vocab_size)
        self._known_tokens = known_tokens
        self._memory: list[list[_Slot | None]] = [[None] * block_size for _ in range(num_blocks)]

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """Write every row's tokens and answer where asked. Raises FakeRunnerError."""
        self._check_batch(batch)
        sampled: dict[str, SampledToken] = {}
        for row in batch.rows:
            history = self._read(row)
            self._write(row, history[-1].state if history else _ROOT)
            if row.samples:
                tokens = [slot.token_id for slot in history]
                tokens.extend(row.token_ids)
                sampled[row.request_id] = SampledToken(self._next_token(tokens))
        return RunnerOutput(sampled)

    def _check_batch(self, batch: ScheduledBatch) -> None:
        if batch.num_tokens != sum(len(row.token_ids) for row in batch.rows):
            raise FakeRunnerError("num_tokens is not the sum of the rows")
        if len({row.request_id for row in batch.rows}) != len(batch.rows):
            raise FakeRunnerError("a request has two rows")
        users: dict[int, set[str]] = {}
        for row in batch.rows:
            self._check_row(row)
            for block_id in row.block_tables[0]:
                users.setdefault(block_id, set()).add(row.request_id)
        for row in batch.rows:
            for block_id in self._written_blocks(row):
                if users[block_id] != {row.request_id}:
                    raise FakeRunnerError(f"block {block_id} is written, but in two tables")

    def _check_row(self, row: ScheduledRow) -> None:
        (table,) = row.block_tables
        if not row.token_ids or row.start < 0:
            raise FakeRunnerError(f"{row.request_id}: nothing to compute")
        if len(table) * self._block_size < row.start + len(row.token_ids):
            raise FakeRunnerError(f"{row.request_id}: the block table is too short")
        if len(set(table)) != len(table) or not set(table) <= set(range(len(self._memory))):
            raise FakeRunnerError(f"{row.request_id}: the block table is not a set of blocks")
        if not all(0 <= token < self._vocab_size for token in row.token_ids):
            raise FakeRunnerError(f"{row.request_id}: a token id is outside the vocabulary")

    def _written_blocks(self, row: ScheduledRow) -> Sequence[int]:
        last = row.start + len(row.token_ids) - 1
        return row.block_tables[0][row.start // self._block_size : last // self._block_size + 1]

    def _read(self, row: ScheduledRow) -> list[_Slot]:
        """The slots of every earlier position, each checked against the one before it."""
        known = self._known_tokens(row.request_id) if self._known_tokens else None
        history: list[_Slot] = []
        before = _ROOT
        for position in range(row.start):
            block_id = row.block_tables[0][position // self._block_size]
            slot = self._memory[block_id][position % self._block_size]
            if slot is None or slot.position != position or slot.before != before:
                raise FakeRunnerError(
                    f"{row.request_id}: block {block_id} does not hold position {position}"
                )
            if known is not None and slot.token_id != known[position]:
                raise FakeRunnerError(f"{row.request_id}: position {position} is another's token")
            history.append(slot)
            before = slot.state
        return history

    def _write(self, row: ScheduledRow, before: int) -> None:
        for position, token_id in enumerate(row.token_ids, row.start):
            slot = _Slot(position, token_id, before)
            block = self._memory[row.block_tables[0][position // self._block_size]]
            block[position % self._block_size] = slot
            before = slot.state
