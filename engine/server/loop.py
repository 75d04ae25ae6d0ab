"""The thread that owns the engine core: commands go in between steps, events come out once a step.

Nothing else touches the core or its requests. Aborts are applied before the output of the step
they arrived in is handled, so a request that was aborted during its last step is not a success.
With nothing to do the thread waits on a condition. A step that fails ends the requests of its
batch; anything worse ends the thread, every stream with it, and `alive` says so.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from engine.core.batch import Admission, EmittedToken, RunnerOutput, ScheduledBatch, StepReport
from engine.core.engine_core import CoreConfig, CoreStats, EngineCore
from engine.core.errors import DuplicateRequest, NeverFits, QueueFull, StepFailed
from engine.core.ports import ModelRunner
from engine.core.preemption import PreemptionPolicy
from engine.core.request import FinishReason
from engine.server.errors import (
    DuplicateRequestId,
    EngineBusy,
    EngineDead,
    EngineDraining,
    GenerationFailed,
    RequestAborted,
    context_length_exceeded,
)
from engine.server.journey import Ended, Journey, Submission
from engine.server.stream import Admitted, Delta, Event, Failed, TokenStream
from engine.server.telemetry import EngineMetrics

log = logging.getLogger(__name__)

STALLED_STEPS: Final = 100
IDLE_STEP_WAIT_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The core's figures after a turn; replaced whole, so any thread may read it."""

    stats: CoreStats
    sequence: int
    stalled: bool


@dataclass(frozen=True, slots=True)
class _Add:
    submission: Submission


@dataclass(frozen=True, slots=True)
class _Abort:
    """By id from outside; by `stream` from our own handlers, which may hold a refused id."""

    request_id: str
    stream: TokenStream | None = None
    answer: "asyncio.Future[bool] | None" = None


@dataclass(frozen=True, slots=True)
class _FailAll:
    error: Exception


_Command = _Add | _Abort | _FailAll


@dataclass(slots=True)
class _Outbox:
    """What one turn has to say to the event loop."""

    events: list[tuple[TokenStream, Event]] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    answers: list[tuple["asyncio.Future[bool]", bool]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.events or self.ended or self.answers)


class TimedRunner:
    """Runs batches through another runner and adds up the seconds that takes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.total_s = 0.0

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """As the wrapped runner."""
        began = time.perf_counter()
        try:
            return self._runner.execute(batch)
        finally:
            self.total_s += time.perf_counter() - began


class EngineLoop:
    """Owns one `EngineCore` and its thread.

    `start`, `submit`, `abort`, `fail_all` and `stop` are called on the event loop's thread;
    `snapshot` and `alive` may be read anywhere. `on_ended` is told on the event loop about every
    request that entered the core, however it ended. `prepare_thread` runs first on the thread
    itself, for libraries that keep settings per thread.
    """

    def __init__(
        self,
        config: CoreConfig,
        runner: ModelRunner,
        metrics: EngineMetrics,
        *,
        on_ended: Callable[[Ended], None] = lambda _: None,
        preemption: PreemptionPolicy | None = None,
        prepare_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self._runner = TimedRunner(runner)
        self._core = EngineCore(config, self._runner, preemption)
        self._metrics = metrics
        self._on_ended = on_ended
        self._prepare_thread = prepare_thread
        self._journeys: dict[str, Journey] = {}
        self._outbox = _Outbox()
        self._commands: deque[_Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._dead = False
        self._steps_without_progress = 0
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._aio: asyncio.AbstractEventLoop | None = None
        self.snapshot = Snapshot(self._core.stats(), sequence=0, stalled=False)
        metrics.published(self.snapshot.stats)

    # --- on the event loop's thread ------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the thread is there to serve requests."""
        return self._thread.is_alive() and not self._dead

    def start(self) -> None:
        """Start the thread; events will come to the running event loop."""
        self._aio = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, submission: Submission) -> None:
        """Queue a request. Refusals come as `Failed` on its stream; a dead loop raises."""
        self._command(_Add(submission))

    def abort(self, request_id: str, stream: TokenStream) -> None:
        """Abort this very request, if it is still there; effective before the next step."""
        if not self._dead:
            self._command(_Abort(request_id, stream))

    async def abort_id(self, request_id: str) -> bool:
        """Abort by id and say whether there was such a request; its blocks are back by then."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._command(_Abort(request_id, answer=answer))
        return await answer

    def fail_all(self, error: Exception) -> None:
        """End every request now: the drain deadline has passed."""
        if not self._dead:
            self._command(_FailAll(error))

    async def stop(self) -> None:
        """End the thread after its current step; requests still there fail as draining."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def _command(self, command: _Command) -> None:
        with self._wake:
            if self._dead:
                raise EngineDead
            self._commands.append(command)
            self._wake.notify()

    def _deliver(self, outbox: _Outbox) -> None:
        for stream, event in outbox.events:
            if not stream.push(event):
                self._abort_slow_reader(stream)
        for answer, value in outbox.answers:
            if not answer.done():
                answer.set_result(value)
        for ended in outbox.ended:
            self._on_ended(ended)

    def _abort_slow_reader(self, stream: TokenStream) -> None:
        self._metrics.request_error("deliver")
        self.abort(stream.request_id, stream)

    # --- on the engine thread ------------------------------------------------------------------

    def _run(self) -> None:
        last_words: Exception = EngineDead()
        try:
            self._prepare_thread()
            while not self._stopping:
                self._wait_for_work()
                self._turn()
            last_words = EngineDraining()
        except Exception:
            log.exception("the engine loop failed and cannot go on")
            self._metrics.request_error("loop")
        finally:
            self._close(last_words)

    def _close(self, last_words: Exception) -> None:
        """After this no command is accepted, and whoever had sent one has an answer."""
        with self._wake:
            self._dead = True
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            match command:
                case _Add(submission):
                    self._outbox.events.append((submission.stream, Failed(last_words)))
                case _Abort(answer=answer) if answer is not None:
                    self._outbox.answers.append((answer, False))
        for journey in list(self._journeys.values()):
            self._end(journey, FinishReason.ERROR, Failed(last_words))
        self._flush()

    def _wait_for_work(self) -> None:
        with self._wake:
            if self._steps_without_progress and not (self._commands or self._stopping):
                self._wake.wait(IDLE_STEP_WAIT_S)
            while not (self._commands or self._stopping or self._core.has_work()):
                self._wake.wait()

    def _turn(self) -> None:
        self._apply_commands()
        if self._core.has_work():
            report = self._step()
            stepped = dict(self._journeys)
            self._apply_commands()
            if report is not None:
                self._handle(report, stepped)
        self._publish()
        self._flush()

    def _step(self) -> StepReport | None:
        began, executing = time.perf_counter(), self._runner.total_s
        try:
            report = self._core.step()
        except StepFailed as failure:
            log.exception("a step failed; %d requests end with it", len(failure.request_ids))
            self._fail(failure)
            return None
        self._metrics.stepped(
            step_s=time.perf_counter() - began,
            execute_s=self._runner.total_s - executing,
            batch_tokens=report.num_batch_tokens,
        )
        idle = report.num_batch_tokens == 0 and self._core.has_work()
        self._steps_without_progress = self._steps_without_progress + 1 if idle else 0
        return report

    def _apply_commands(self) -> None:
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            match command:
                case _Add(submission):
                    self._add(submission)
                case _Abort():
                    self._abort(command)
                case _FailAll(error):
                    self._fail_all(error)

    def _add(self, submission: Submission) -> None:
        request = submission.request
        refusal = self._refusal(submission)
        if refusal is not None:
            self._outbox.events.append((submission.stream, Failed(refusal)))
            return
        self._journeys[request.request_id] = Journey(submission)

    def _refusal(self, submission: Submission) -> Exception | None:
        """Hand the request to the core; what a client is told when the core refuses it."""
        request = submission.request
        try:
            self._core.add(request)
        except DuplicateRequest:
            return DuplicateRequestId()
        except NeverFits as misfit:
            return context_length_exceeded(
                submission.prompt_param, len(request.prompt_token_ids), misfit.max_tokens
            )
        except QueueFull:
            return EngineBusy()
        except Exception:
            log.exception("a request could not be admitted")
            self._metrics.request_error("admit")
            return GenerationFailed()
        return None

    def _abort(self, command: _Abort) -> None:
        journey = self._journeys.get(command.request_id)
        if journey is not None and command.stream not in {None, journey.submission.stream}:
            journey = None
        if journey is not None:
            self._core.abort(command.request_id)
            self._end(journey, FinishReason.ABORT, Failed(RequestAborted()))
        if command.answer is not None:
            self._outbox.answers.append((command.answer, journey is not None))

    def _fail(self, failure: StepFailed) -> None:
        for request_id in failure.request_ids:
            self._metrics.request_error("execute")
            journey = self._journeys.get(request_id)
            if journey is not None:
                self._end(journey, FinishReason.ERROR, Failed(GenerationFailed()))

    def _fail_all(self, error: Exception) -> None:
        for journey in list(self._journeys.values()):
            self._core.abort(journey.submission.request.request_id)
            self._end(journey, FinishReason.ERROR, Failed(error))

    def _handle(self, report: StepReport, stepped: Mapping[str, Journey]) -> None:
        """Only for requests of the step that are still there: an ended one's id may be reused."""
        now = time.monotonic()
        for admission in report.admitted:
            journey = stepped[admission.request_id]
            if self._journeys.get(admission.request_id) is journey:
                self._admit(journey, admission, now)
        for token in report.emitted:
            journey = stepped[token.request_id]
            if self._journeys.get(token.request_id) is journey:
                self._emit_guarded(journey, token, now)

    def _admit(self, journey: Journey, admission: Admission, now: float) -> None:
        journey.admitted_at = now
        journey.num_cached_tokens = admission.num_cached_tokens
        self._metrics.admitted(
            queue_s=now - journey.submission.arrived_at,
            prompt_tokens=len(journey.submission.request.prompt_token_ids),
        )
        self._say(journey, Admitted(admission.num_cached_tokens))

    def _emit_guarded(self, journey: Journey, token: EmittedToken, now: float) -> None:
        """One request's text may fail without touching another's."""
        try:
            self._emit(journey, token, now)
        except Exception:
            log.exception("the text of a request failed")
            self._metrics.request_error("detokenize")
            self._core.abort(token.request_id)
            self._end(journey, FinishReason.ERROR, Failed(GenerationFailed()))

    def _emit(self, journey: Journey, token: EmittedToken, now: float) -> None:
        since = journey.last_token_at or journey.submission.arrived_at
        self._metrics.emitted(now - since, first=journey.first_token_at is None)
        journey.first_token_at = journey.first_token_at or now
        journey.last_token_at = now
        journey.output_tokens += 1
        output, reason = journey.submission.output, token.finish_reason
        if reason is None:
            text, stopped = output.push(token.token_id)
            if stopped:
                self._core.finish(token.request_id, FinishReason.STOP)
        else:
            text, stopped = output.finish(token.token_id)
        reason = FinishReason.STOP if stopped else reason
        delta = Delta(text, journey.output_tokens, reason)
        if reason is None:
            self._say(journey, delta)
        else:
            self._end(journey, reason, delta)

    def _say(self, journey: Journey, event: Event) -> None:
        self._outbox.events.append((journey.submission.stream, event))

    def _end(self, journey: Journey, reason: FinishReason, last: Event) -> None:
        self._say(journey, last)
        del self._journeys[journey.submission.request.request_id]
        error = type(last.error).__name__ if isinstance(last, Failed) else None
        self._outbox.ended.append(Ended(journey, reason, time.monotonic(), error))

    def _publish(self) -> None:
        stats = self._core.stats()
        self._metrics.published(stats)
        stalled = self._steps_without_progress >= STALLED_STEPS
        self.snapshot = Snapshot(stats, self.snapshot.sequence + 1, stalled)

    def _flush(self) -> None:
        if self._outbox and self._aio is not None:
            self._aio.call_soon_threadsafe(self._deliver, self._outbox)
            self._outbox = _Outbox()
