"""A request as the scheduler knows it: its tokens, how many are computed, and its blocks.

The scheduler owns every `Request` from `add` to its finish; only it and its KV cache write to one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from engine.core.samples import Family

NO_BLOCK: Final = -1
"""Stands in a block table where a page group has let go of the page at that position."""


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
    `stop_token_ids` end the output, but not before `min_tokens`; they include the model's
    end-of-sequence tokens unless those are to be ignored. `bad_words` are token sequences that the
    output never completes. `logprobs` asks for the log-probability of each output token and of that
    many most likely ones, `prompt_logprobs` for the same at every prompt position but the first;
    None asks for nothing.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. `namespace` roots its cache keys; `use_cache` False means no lookup, no insert.

    The fields up to `weight` are the caller's; the rest is the engine core's bookkeeping. `owner`
    and `weight` say whose idle cached blocks are whose when some must be evicted.
    `arrival` orders requests by when they were added, and so decides who is older. The KV cache
    owns `block_tables` (the blocks held, by page group and position; `NO_BLOCK` where a group has
    let a page go), `block_keys` (the keys of the leading full blocks; they outlive a preemption)
    and `num_committed_blocks` (leading blocks that are hits or were offered to the prefix cache).
    `num_lost_tokens` is the most that a preemption threw away; `num_scored_tokens` counts the
    leading prompt positions whose log-probabilities are delivered or can never be. `family`, set
    by the scheduler when the request is added, are the samples of the same prompt.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    namespace: str
    use_cache: bool = True
    owner: str = ""
    weight: int = 1
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    arrival: int = 0
    block_tables: tuple[list[int], ...] = ()
    block_keys: list[bytes] = field(default_factory=list)
    num_committed_blocks: int = 0
    num_lost_tokens: int = 0
    num_scored_tokens: int = 1
    num_outputs_at_preemption: int = 0
    family: Family = field(init=False, repr=False)

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
