"""The values that pass between scheduler, runner and server in one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.core.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One request's share of a step: compute `token_ids` at positions `start`, `start + 1`, ...

    `block_table[p // block_size]` holds position p, for every position below
    `start + len(token_ids)`; it is a live view, valid only until the step's `update`.
    `sampling` is None for a chunk that ends before the last known token: it yields no token.
    `output_index` is the index of the output token this row samples.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    sampling: SamplingParams | None
    output_index: int


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What one step computes. Decodes come first; `num_tokens` never exceeds the token budget."""

    step: int
    rows: tuple[ScheduledRow, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """The token sampled for each row whose `sampling` was set, by request id."""

    token_ids: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request began to run for the first time; `num_cached_tokens` of its prompt were hits."""

    request_id: str
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class EmittedToken:
    """One new output token; `finish_reason` is set on a request's last."""

    request_id: str
    token_id: int
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did, for the server: admissions, then tokens, then requests ended without one."""

    step: int
    admitted: tuple[Admission, ...]
    emitted: tuple[EmittedToken, ...]
    num_batch_tokens: int
    num_preempted: int
