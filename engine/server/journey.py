"""One request's way through the engine, from submission to its end, as times and counts."""

from dataclasses import dataclass

from opentelemetry.context import Context

from engine.core.request import FinishReason, Request
from engine.server.output import OutputText
from engine.server.stream import TokenStream


@dataclass(frozen=True, slots=True)
class Submission:
    """What a handler hands to the engine thread, which owns `request` and `output` from then on.

    `prompt_param` is the field to blame when the prompt can never fit. `arrived_at` is monotonic
    seconds, `arrived_ns` the same moment as Unix nanoseconds.
    """

    request: Request
    output: OutputText
    stream: TokenStream
    prompt_param: str
    operation: str
    trace: Context | None
    arrived_at: float
    arrived_ns: int


@dataclass(slots=True, eq=False)
class Journey:
    """Owned by the engine thread while the request is in the core."""

    submission: Submission
    admitted_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    num_cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished journey; `finish_reason` ABORT and ERROR name the ends no client sees as such."""

    journey: Journey
    finish_reason: FinishReason
    ended_at: float
    error_type: str | None = None
