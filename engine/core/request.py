"""A request as the scheduler knows it: its tokens, how many are computed, and its blocks.

The scheduler owns every `Request` from `add` to its finish; only it and its KV cache write to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class FinishReason(StrEnum):
    """Why a request ended; `abort` and `error` never reach a client as a normal completion."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(Enum):
    """Where a request is; `PREEMPTED` waits like `WAITING` but is resumed before later arrivals."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are chosen; every field is validated before it gets here.

    The token at output index i is drawn from a random stream keyed by (seed, i), so neither
    batching nor preemption can change it. `temperature` 0 is greedy; `top_k` 0 is off.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `namespace` roots its cache keys; `use_cache` False means no lookup, no insert.

    The first five fields are the caller's; the rest is the engine core's bookkeeping.
    `arrival` orders requests by when they were added, and so decides who is older. The KV cache
    owns `block_table` (the blocks held, by position), `block_keys` (the keys of the leading full
    blocks; they outlive a preemption) and `num_committed_blocks` (leading blocks that are hits or
    were offered to the prefix cache). `num_lost_tokens` is the most that a preemption threw away.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    namespace: str
    use_cache: bool = True
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    arrival: int = 0
    block_table: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    num_committed_blocks: int = 0
    num_lost_tokens: int = 0
    num_outputs_at_preemption: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens not yet computed."""
        num_known = len(self.prompt_token_ids) + len(self.output_token_ids)
        return num_known - self.num_computed_tokens

    def token_ids(self, start: int, stop: int) -> Sequence[int]:
        """The known token ids at positions start to stop - 1."""
        num_prompt = len(self.prompt_token_ids)
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : stop - num_prompt]
        if stop <= num_prompt:
            return self.prompt_token_ids[start:stop]
        return (*self.prompt_token_ids[start:], *self.output_token_ids[: stop - num_prompt])
