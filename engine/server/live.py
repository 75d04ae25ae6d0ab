"""The requests that are in the engine: what a step's report means for each of them.

Lives on the engine thread. A request has one journey and one or more samples, each a request of
its own to the core: they come in together, each has its text and its end, and a fault or an abort
of one ends them all. A sample's text ends its request in the core when a stop string appears.
"""

import logging
import time
from collections.abc import Mapping
from typing import Final

from engine.core.batch import Admission, EmittedToken, Failure, ScoredPrompt, StepReport
from engine.core.engine_core import EngineCore
from engine.core.errors import DuplicateRequest, NeverFits, QueueFull
from engine.core.request import FinishReason
from engine.server.commands import Abort, Answer, Outbox
from engine.server.errors import (
    DuplicateRequestId,
    EngineBusy,
    GenerationFailed,
    RequestAborted,
    context_length_exceeded,
)
from engine.server.journey import Ended, Journey, Sample, Submission
from engine.server.stream import Admitted, Delta, Event, Failed, PromptScored
from engine.server.telemetry import EngineMetrics

log = logging.getLogger(__name__)

Part = tuple[Journey, Sample]
"""A sample that is in the core, and the journey it is part of."""


class LiveRequests:
    """Owns every journey from its submission to its end, and fills the outbox of the turn."""

    def __init__(self, core: EngineCore, metrics: EngineMetrics) -> None:
        self._core: Final = core
        self._metrics: Final = metrics
        self._journeys: dict[str, Journey] = {}
        self._parts: dict[str, Part] = {}
        self.outbox = Outbox()

    def parts(self) -> Mapping[str, Part]:
        """Who is in the core now, by the core's ids; a copy."""
        return dict(self._parts)

    # --- commands ------------------------------------------------------------------------------

    def add(self, submission: Submission) -> None:
        """Take a request in, or refuse it on its stream."""
        refusal = self._refusal(submission)
        if refusal is not None:
            self.refuse(submission, refusal)
            return
        journey = Journey(submission)
        self._journeys[submission.request_id] = journey
        for sample in submission.samples:
            self._parts[sample.request.request_id] = (journey, sample)

    def refuse(self, submission: Submission, error: Exception) -> None:
        """Say that the request never got in."""
        self.outbox.events.append((submission.stream, Failed(error)))
        self.outbox.released.append(submission.place)

    def abort(self, command: Abort) -> None:
        """End a request in any state; its blocks are back when this returns."""
        journey = self._journeys.get(command.request_id)
        if journey is not None and command.stream not in {None, journey.submission.stream}:
            journey = None
        if journey is not None:
            self._cut_short(journey, FinishReason.ABORT, RequestAborted())
        if command.answer is not None:
            self.outbox.answers.append(Answer(command.answer, journey is not None))

    def fail_all(self, error: Exception) -> None:
        """End every request with this error."""
        for journey in list(self._journeys.values()):
            self._cut_short(journey, FinishReason.ERROR, error)

    def lose_all(self, error: Exception) -> None:
        """The core is no more: tell every request so, and ask it nothing."""
        for journey in list(self._journeys.values()):
            self._lose(journey, FinishReason.ERROR, error)

    def _refusal(self, submission: Submission) -> Exception | None:
        """Hand the samples to the core; what a client is told when it refuses them."""
        if submission.request_id in self._journeys:
            return DuplicateRequestId()
        try:
            self._core.add(*(sample.request for sample in submission.samples))
        except DuplicateRequest:
            return DuplicateRequestId()
        except NeverFits as misfit:
            return context_length_exceeded(
                submission.prompt_param,
                submission.prompt_tokens,
                submission.samples[0].request.sampling.max_tokens,
                misfit.max_tokens,
            )
        except QueueFull:
            return EngineBusy()
        except Exception:
            log.exception("a request could not be admitted")
            self._metrics.request_error("admit")
            return GenerationFailed()
        return None

    # --- a step's report -----------------------------------------------------------------------

    def handle(self, report: StepReport, stepped: Mapping[str, Part]) -> None:
        """Only for samples of the step that are still there: an ended one's id may be reused."""
        now = time.monotonic()
        for failure in report.failed:
            part = self._still_there(failure.request_id, stepped)
            if part is not None:
                self._fail(part[0], failure)
        for admission in report.admitted:
            part = self._still_there(admission.request_id, stepped)
            if part is not None:
                self._admit(part[0], admission, now)
        for scored in report.scored:
            part = self._still_there(scored.request_id, stepped)
            if part is not None:
                self._tell_scores(part[0], scored)
        num_emitted = 0
        for token in report.emitted:
            part = self._still_there(token.request_id, stepped)
            if part is not None:
                num_emitted += 1
                self._emit(*part, token, now)
        self._metrics.emitted(num_emitted)

    def _still_there(self, core_id: str, stepped: Mapping[str, Part]) -> Part | None:
        part = self._parts.get(core_id)
        return part if part is not None and part is stepped.get(core_id) else None

    def _fail(self, journey: Journey, failure: Failure) -> None:
        log.error("a request failed at %s", failure.hook, exc_info=failure.error)
        self._metrics.request_error(failure.hook)
        self._cut_short(journey, FinishReason.ERROR, GenerationFailed())

    def _admit(self, journey: Journey, admission: Admission, now: float) -> None:
        """The first sample to run begins the journey; the last ends the prompt's wait."""
        journey.num_admitted += 1
        if journey.num_admitted == len(journey.submission.samples):
            self.outbox.began.append(journey.submission.place)
        if journey.admitted_at is None:
            journey.admitted_at = now
            journey.num_cached_tokens = admission.num_cached_tokens
            self._metrics.admitted(
                queue_s=now - journey.submission.arrived_at,
                prompt_tokens=journey.submission.prompt_tokens,
            )
            self._say(journey, Admitted(admission.num_cached_tokens))

    def _tell_scores(self, journey: Journey, scored: ScoredPrompt) -> None:
        """Positions that another sample has scored already are not told again."""
        news = scored.logprobs[max(0, journey.num_scored_tokens - scored.start) :]
        if news:
            journey.num_scored_tokens += len(news)
            self._say(journey, PromptScored(news))

    def _emit(self, journey: Journey, sample: Sample, token: EmittedToken, now: float) -> None:
        """One request's text may fail without touching another's."""
        self._count(journey, sample, now)
        reason = token.finish_reason
        try:
            if reason is None:
                text, stopped, tokens = sample.output.push(token.token_id, token.logprobs)
            else:
                text, stopped, tokens = sample.output.finish(
                    token.token_id, token.logprobs, by_token=reason is FinishReason.STOP
                )
        except Exception:
            log.exception("the text of a request failed")
            self._metrics.request_error("detokenize")
            self._cut_short(journey, FinishReason.ERROR, GenerationFailed())
            return
        if stopped:
            reason = FinishReason.STOP
            self._core.finish(token.request_id, reason)
        self._say(journey, Delta(text, sample.output_tokens, reason, sample.index, tokens))
        if reason is not None:
            self._finish(journey, sample, reason)

    def _count(self, journey: Journey, sample: Sample, now: float) -> None:
        if sample.last_token_at is not None:
            self._metrics.next_token(now - sample.last_token_at)
        elif journey.first_token_at is None:
            journey.first_token_at = now
            self._metrics.first_token(now - journey.submission.arrived_at)
        sample.last_token_at = now
        sample.output_tokens += 1

    # --- ends ----------------------------------------------------------------------------------

    def _finish(self, journey: Journey, sample: Sample, reason: FinishReason) -> None:
        """A sample came to its own end; the journey ends with its last."""
        sample.finish_reason = reason
        del self._parts[sample.request.request_id]
        if not any(journey.unfinished()):
            self._close(journey, None)

    def _cut_short(self, journey: Journey, reason: FinishReason, error: Exception) -> None:
        """Take what is left of a request out of the core; its client is told `error`."""
        for sample in journey.unfinished():
            self._core.abort(sample.request.request_id)
        self._lose(journey, reason, error)

    def _lose(self, journey: Journey, reason: FinishReason, error: Exception) -> None:
        for sample in journey.unfinished():
            sample.finish_reason = reason
            del self._parts[sample.request.request_id]
        self._say(journey, Failed(error))
        self._close(journey, type(error).__name__)

    def _close(self, journey: Journey, error_type: str | None) -> None:
        submission = journey.submission
        del self._journeys[submission.request_id]
        reasons = tuple(s.finish_reason or FinishReason.ERROR for s in submission.samples)
        self.outbox.ended.append(Ended(journey, reasons, time.monotonic(), error_type))
        self.outbox.released.append(submission.place)

    def _say(self, journey: Journey, event: Event) -> None:
        self.outbox.events.append((journey.submission.stream, event))
