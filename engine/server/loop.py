"""The thread that owns the engine core: commands go in between steps, events come out once a step.

Nothing else touches the core or its requests. Aborts are applied before the output of the step
they arrived in is handled, so a request that was aborted during its last step is not a success.
With nothing to do the thread waits on a condition, and after a second checks that no block is
lost or wrongly shared. A request that fails in a step ends alone; anything worse ends the thread,
every stream with it, and `alive` says so.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from engine.core.batch import RunnerOutput, ScheduledBatch, StepReport
from engine.core.engine_core import CoreConfig, CoreStats, EngineCore
from engine.core.ports import ModelRunner
from engine.core.preemption import PreemptionPolicy
from engine.server.commands import Abort, Add, Answer, Call, Command, FailAll, Outbox
from engine.server.errors import EngineDead, EngineDraining
from engine.server.journey import Ended, Submission
from engine.server.live import LiveRequests
from engine.server.stream import TokenStream
from engine.server.telemetry import EngineMetrics

log = logging.getLogger(__name__)

STALLED_STEPS: Final = 100
IDLE_STEP_WAIT_S: Final = 0.005
IDLE_CHECK_S: Final = 1.0
"""So long nothing was asked for when the block accounting is checked: in nobody's way."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The core's figures after a turn; replaced whole, so any thread may read it."""

    stats: CoreStats
    sequence: int
    stalled: bool


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
    `config`, `snapshot` and `alive` may be read anywhere. `on_ended` is told on the event loop
    about every request that entered the core, however it ended.
    """

    def __init__(
        self,
        config: CoreConfig,
        runner: ModelRunner,
        metrics: EngineMetrics,
        *,
        on_ended: Callable[[Ended], None] = lambda _: None,
        preemption: PreemptionPolicy | None = None,
    ) -> None:
        self.config = config
        self._runner = TimedRunner(runner)
        self._core = EngineCore(config, self._runner, preemption)
        self._metrics = metrics
        self._on_ended = on_ended
        self._live = LiveRequests(self._core, metrics)
        self._commands: deque[Command] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._dead = False
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
        self._command(Add(submission))

    def abort(self, request_id: str, stream: TokenStream) -> None:
        """Abort this very request, if it is still there; effective before the next step."""
        self._tell(Abort(request_id, stream))

    async def abort_id(self, request_id: str) -> bool:
        """Abort by id and say whether there was such a request; its blocks are back by then."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._command(Abort(request_id, answer=answer))
        return await answer

    async def call(self, run: Callable[[EngineCore], Result]) -> Result:
        """What `run` returns or raises, between two steps on the engine thread."""
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._command(Call(run, answer))
        return await answer

    def fail_all(self, error: Exception) -> None:
        """End every request now: the drain deadline has passed."""
        self._tell(FailAll(error))

    async def stop(self) -> None:
        """End the thread after its current step; requests still there fail as draining."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def _tell(self, command: Command) -> None:
        """A command that a dead loop, which has ended every request, need not hear."""
        with contextlib.suppress(EngineDead):
            self._command(command)

    def _command(self, command: Command) -> None:
        with self._wake:
            if self._dead:
                raise EngineDead
            self._commands.append(command)
            self._wake.notify()

    def _deliver(self, outbox: Outbox) -> None:
        for stream, event in outbox.events:
            if not stream.push(event):
                self._abort_slow_reader(stream)
        for place in outbox.began:
            place.began()
        for place in outbox.released:
            place.release()
        for answer in outbox.answers:
            answer.give()
        for ended in outbox.ended:
            self._on_ended(ended)

    def _abort_slow_reader(self, stream: TokenStream) -> None:
        self._metrics.request_error("deliver")
        self.abort(stream.request_id, stream)

    # --- on the engine thread ------------------------------------------------------------------

    def _run(self) -> None:
        last_words: Exception = EngineDead()
        try:
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
                case Add(submission):
                    self._live.refuse(submission, last_words)
                case Abort(answer=answer) if answer is not None:
                    self._live.outbox.answers.append(Answer(answer, value=False))
                case Call(answer=answer):
                    self._live.outbox.answers.append(Answer(answer, error=last_words))
        self._live.lose_all(last_words)
        self._flush()

    def _wait_for_work(self) -> None:
        """Raises IntegrityError: blocks that two tenants may share must not serve anyone."""
        with self._wake:
            if self.snapshot.stats.stalled_steps and not (self._commands or self._stopping):
                self._wake.wait(IDLE_STEP_WAIT_S)
            if self._wake.wait_for(self._is_wanted, IDLE_CHECK_S):
                return
        self._core.check_integrity()
        with self._wake:
            self._wake.wait_for(self._is_wanted)

    def _is_wanted(self) -> bool:
        return bool(self._commands) or self._stopping or self._core.has_work()

    def _turn(self) -> None:
        self._apply_commands()
        if self._core.has_work():
            report = self._step()
            stepped = self._live.parts()
            self._apply_commands()
            self._live.handle(report, stepped)
        self._publish()
        self._flush()

    def _step(self) -> StepReport:
        began, executing = time.perf_counter(), self._runner.total_s
        report = self._core.step()
        self._metrics.stepped(
            step_s=time.perf_counter() - began,
            execute_s=self._runner.total_s - executing,
            batch_tokens=report.num_batch_tokens,
        )
        return report

    def _apply_commands(self) -> None:
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            match command:
                case Add(submission):
                    self._live.add(submission)
                case Abort():
                    self._live.abort(command)
                case Call():
                    self._live.outbox.answers.append(self._call(command))
                case FailAll(error):
                    self._live.fail_all(error)

    def _call(self, command: Call) -> Answer:
        """A call may fail; whoever asked for it is told, and nobody else."""
        try:
            return Answer(command.answer, command.run(self._core))
        except Exception as error:  # noqa: BLE001 - handed on whole, to be raised there
            return Answer(command.answer, error=error)

    def _publish(self) -> None:
        stats = self._core.stats()
        self._metrics.published(stats)
        stalled = stats.stalled_steps >= STALLED_STEPS
        self.snapshot = Snapshot(stats, self.snapshot.sequence + 1, stalled)

    def _flush(self) -> None:
        outbox = self._live.outbox
        if outbox and self._aio is not None:
            self._live.outbox = Outbox()
            self._aio.call_soon_threadsafe(self._deliver, outbox)
