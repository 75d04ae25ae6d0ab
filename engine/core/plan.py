"""A step in the making: how the token budget is spent, and on whom.

Decodes take one token each and come first. What is left is shared by the prefills, so that a short
prompt does not wait behind a long one: in order, each gets up to its share, a quarter of the step's
budget; then what nobody took goes to the oldest. A lone prefill thus has all of it. With a
`long_prefill_token_threshold`, that is what a prefill gets at most, and there is no second round.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from engine.core.batch import Admission, BlockCopy, Failure, ScheduledBatch, ScheduledRow
from engine.core.config import CoreConfig
from engine.core.request import Request

PREFILL_SHARES: Final = 4
"""A prefill's first share of a step is the budget divided by this, rounded up."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step's decision: the batch, the request behind each row, and who came and went."""

    batch: ScheduledBatch
    requests: tuple[Request, ...]
    admitted: tuple[Admission, ...]
    failed: tuple[Failure, ...]
    num_preempted: int


class Plan:
    """What is left of the token budget, and what the rest was spent on."""

    def __init__(self, config: CoreConfig) -> None:
        budget = config.max_num_batched_tokens
        threshold = config.long_prefill_token_threshold
        self.budget = budget
        self.admitted: list[Admission] = []
        self.failed: list[Failure] = []
        self.num_preempted = 0
        self._total = budget
        self._share = threshold or -(-budget // PREFILL_SHARES)
        self._most = threshold or budget
        self._rows: list[ScheduledRow] = []
        self._requests: list[Request] = []
        self._chunks: dict[Request, int] = {}
        self._copies: list[BlockCopy] = []
        self._origins: dict[int, int] = {}  # of the blocks that are targets of copies

    def decode(self, request: Request) -> None:
        """Compute the one token that is pending; no prompt position is left to score then."""
        prompt, output = request.prompt_token_ids, request.output_token_ids
        self.budget -= 1
        self._requests.append(request)
        self._rows.append(
            ScheduledRow(
                request.request_id,
                output[-1:] or prompt[-1:],
                request.num_computed_tokens,
                request.block_tables,
                request.sampling,
                True,
                prompt,
                output,
            )
        )

    def prefill(self, request: Request) -> None:
        """Compute the first share of the pending tokens, if any budget is left."""
        chunk = min(request.family.num_to_prefill(request), self._share, self.budget)
        if chunk:
            self._chunks[request] = chunk
            self.budget -= chunk

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Have these copies made before anything is computed, all at the same moment.

        So a copy of what is itself a copy of this step is taken from the original.
        """
        for copy in copies:
            origin = self._origins.get(copy.source, copy.source)
            self._origins[copy.target] = origin
            self._copies.append(BlockCopy(origin, copy.target))

    def finish(self, step: int) -> Schedule:
        """Hand out what is left, oldest first, and close the plan."""
        for request in sorted(self._chunks, key=lambda request: request.arrival):
            chunk = self._chunks[request]
            wanted = min(request.family.num_to_prefill(request), self._most)
            extra = min(wanted - chunk, self.budget)
            self.budget -= extra
            self._add_row(request, chunk + extra)
        return Schedule(
            ScheduledBatch(step, tuple(self._rows), self._total - self.budget, tuple(self._copies)),
            tuple(self._requests),
            tuple(self.admitted),
            tuple(self.failed),
            self.num_preempted,
        )

    def _add_row(self, request: Request, num_tokens: int) -> None:
        start = request.num_computed_tokens
        stop = start + num_tokens
        row = ScheduledRow(
            request.request_id,
            request.token_ids(start, stop),
            start,
            request.block_tables,
            request.sampling,
            samples=stop == request.num_tokens,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            scored=_scored(request, start, stop),
        )
        self._requests.append(request)
        self._rows.append(row)


def _scored(request: Request, start: int, stop: int) -> range:
    """The prompt positions to score whose logits, one position earlier, are among these."""
    if request.sampling.prompt_logprobs is None:
        return range(0)
    first = max(start + 1, request.num_scored_tokens)
    return range(first, max(first, min(stop + 1, len(request.prompt_token_ids))))
