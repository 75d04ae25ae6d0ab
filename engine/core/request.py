"""A request as the scheduler knows it: token ids, how many are computed, and which blocks hold them.

The scheduler owns every `Request` from `add` to its finish; nobody else writes to one.
"""

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
    """One sequence. `namespace` roots its cache keys; `use_cache` False means no lookup, no insert."""

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

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)
