"""The values that pass between scheduler, runner and server in one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.core.request import FinishReason, SamplingParams

Hook = Literal["schedule", "execute", "sample"]
"""Where in a step something failed for one request."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """The whole content of block `source` is wanted in block `target`."""

    source: int
    target: int


@dataclass(slots=True)  # not frozen, nor is EmittedToken: that would make them thrice as dear
class ScheduledRow:
    """One request's share of a step: compute `token_ids` at positions `start`, `start + 1`, ...

    `block_tables[g][p // block_size]` holds position p of page group g, for every position below
    `start + len(token_ids)` that the group's window still needs. `samples` says that the last
    token's logits yield an output token, chosen by `params`. `scored` are the prompt positions
    whose log-probability is wanted; position p is scored by the logits at p - 1, which this row
    computes. Tables and the two token sequences (the whole request's) are live views, valid only
    until the step's `update`.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_tables: tuple[Sequence[int], ...]
    params: SamplingParams
    samples: bool
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    scored: range = range(0)


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """What one step computes. Decodes come first; `num_tokens` never exceeds the token budget.

    `copies` are made before anything is computed. Rows do not depend on each other's results, and
    computing a row again, or copying again before that, changes nothing.
    """

    step: int
    rows: tuple[ScheduledRow, ...]
    num_tokens: int
    copies: tuple[BlockCopy, ...] = ()


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural log-probabilities at one position, from the model's own logits, unmodified.

    Of the token that stands there, whose `rank` 1 means most likely, and of the most likely ones,
    `top`, in that order.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The token a row yielded; with log-probabilities if the request asked for them."""

    token_id: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class RunnerOutput:
    """What the rows yielded, by request id: tokens, scores of prompt positions, or an error.

    Every row that `samples` is in `sampled` or in `failed`; every row with `scored` positions is
    in `scored`, with one entry per position, or in `failed`.
    """

    sampled: Mapping[str, SampledToken]
    scored: Mapping[str, tuple[Logprobs, ...]] = field(default_factory=dict)
    failed: Mapping[str, Exception] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Admission:
    """A request began to run for the first time; `num_cached_tokens` of its prompt were hits."""

    request_id: str
    num_cached_tokens: int


@dataclass(slots=True)
class EmittedToken:
    """One new output token; `finish_reason` is set on a request's last."""

    request_id: str
    token_id: int
    finish_reason: FinishReason | None
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """Scores of the prompt positions from `start` on; no position is ever reported twice."""

    request_id: str
    start: int
    logprobs: tuple[Logprobs, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended with `error` because something failed for it alone."""

    request_id: str
    hook: Hook
    error: Exception


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did, for the server: who came, was scored, emitted, and failed."""

    step: int
    admitted: tuple[Admission, ...]
    emitted: tuple[EmittedToken, ...]
    num_batch_tokens: int
    num_preempted: int
    scored: tuple[ScoredPrompt, ...] = ()
    failed: tuple[Failure, ...] = ()
