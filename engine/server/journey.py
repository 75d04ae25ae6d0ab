"""One request's way through the engine, from submission to its end, as times and counts."""

from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.context import Context

from engine.core.request import FinishReason, Request
from engine.server.output import OutputText
from engine.server.places import Place
from engine.server.stream import TokenStream


@dataclass(slots=True, eq=False)
class Sample:
    """One of a request's answers, a request of its own to the core."""

    index: int
    request: Request
    output: OutputText
    output_tokens: int = 0
    last_token_at: float | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """What a handler hands to the engine thread, which owns `samples` from then on.

    `prompt_param` is the field to blame when the prompt can never fit. `arrived_at` is monotonic
    seconds, `arrived_ns` the same moment as Unix nanoseconds. `place` goes back on the event loop
    when the request has ended, or was refused.
    """

    request_id: str
    samples: tuple[Sample, ...]
    stream: TokenStream
    place: Place
    prompt_param: str
    operation: str
    trace: Context | None
    arrived_at: float
    arrived_ns: int

    @property
    def prompt_tokens(self) -> int:
        """The length of the prompt that all samples share."""
        return len(self.samples[0].request.prompt_token_ids)


@dataclass(slots=True, eq=False)
class Journey:
    """Owned by the engine thread while any of the request's samples is in the core.

    `num_scored_tokens` counts the leading prompt positions whose log-probabilities were told; the
    first has none.
    """

    submission: Submission
    admitted_at: float | None = None
    first_token_at: float | None = None
    num_cached_tokens: int = 0
    num_scored_tokens: int = 1
    num_admitted: int = 0

    @property
    def output_tokens(self) -> int:
        """Of all samples together."""
        return sum(sample.output_tokens for sample in self.submission.samples)

    def unfinished(self) -> Iterable[Sample]:
        """The samples that have not ended by themselves."""
        return (s for s in self.submission.samples if s.finish_reason is None)


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished journey; `error_type` is set where it ended as no client sees a success.

    `finish_reasons` has one per sample; ABORT and ERROR are those of samples cut short.
    """

    journey: Journey
    finish_reasons: tuple[FinishReason, ...]
    ended_at: float
    error_type: str | None = None
