"""A pool's event log as its gateway writes it: every input and effect, numbered, soon on disk.

`append` only encodes; all of one turn of the event loop is written in one call before the next
turn, so what was decided outlives a kill, and a thread syncs it for the loss of power. A disk that
refuses costs no event: they wait in memory, in order, and the log says it is not healthy.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fairness import checkpoint
from fairness.dispatcher import Dispatcher
from fairness.events import Effect, Event, Input, Restarted
from fairness.journal import Header, Sealer
from fairness.policy import Policy
from fairness.types import PoolConfig
from gateway.eventfiles import (
    PART,
    Appender,
    EventLogError,
    begin,
    go_on,
    lock,
    pool_directory,
    segment_path,
    sync_directory,
)
from gateway.eventrecovery import Recovered, recover
from gateway.eventsync import Seal, Syncer, drop_oldest
from gateway.settings import ConfigurationError

log = logging.getLogger(__name__)

MIB = 1024 * 1024
SYNC_INTERVAL_S = 0.05
RETRY_S = 1.0
MOST_BYTES_A_TURN = MIB


class EventLog:
    """One pool's log, open for writing: made by `open`, used on one event loop, ended by `close`.

    `dispatcher` is the pool as the log left it; `epoch` counts incarnations; the pool's clock must
    never show less than `last_now`. Whoever applies an input gives it with its effects to `append`
    before acting on them.
    """

    def __init__(
        self,
        directory: Path,
        locked: int,
        start: "_Start",
        *,
        wall: Callable[[], float],
        segment_bytes: int,
        keep_bytes: int,
        on_health: Callable[[str | None], None],
        on_synced: Callable[[float], None],
    ) -> None:
        header = start.header
        self.dispatcher = start.dispatcher
        self.epoch = header.epoch
        self.last_now = header.now
        self.bytes_written = 0
        self._directory = directory
        self._locked = locked
        self._header = header
        self._wall = wall
        self._segment_bytes = segment_bytes
        self._keep_bytes = keep_bytes
        self._on_health = on_health
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: deque[bytes] = deque()
        self._turn: asyncio.Handle | None = None
        self._closed = False
        self._write_problem: str | None = None
        self._sync_problem: str | None = None
        self._reported: str | None = None
        self._rotation_due = False
        self._full_at = 0
        self._sealer, self._file = self._begin_segment(header)
        self._syncer = Syncer(
            directory,
            self._file.descriptor,
            keep_bytes=keep_bytes,
            interval_s=SYNC_INTERVAL_S,
            retry_s=RETRY_S,
            on_state=self._sync_told,
            on_synced=on_synced,
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        pool: str,
        config: PoolConfig,
        policy: Policy,
        *,
        now: float,
        wall: Callable[[], float],
        incarnation: str,
        segment_bytes: int = 16 * MIB,
        keep_bytes: int = 1024 * MIB,
        on_health: Callable[[str | None], None] = lambda _reason: None,
        on_synced: Callable[[float], None] = lambda _seconds: None,
    ) -> Self:
        """Lock the pool's log below `directory`, recover the pool from it and begin a new segment.

        `now` is what the pool's clock shows, `wall` the time of day. `on_health` is told on the
        event loop what is wrong with the log, None once all is well; `on_synced`, in a thread, of
        each sync's seconds.

        Raises ConfigurationError where another process has it open, and EventLogError where it is
        damaged or cannot be written; the log is then as it was, but for half a line at its end.
        """
        own = pool_directory(directory, pool)
        try:
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            locked = lock(own)
        except OSError as error:
            raise EventLogError(f"{own} cannot be used: {error.strerror}") from error
        if locked is None:
            raise ConfigurationError(
                f"the event log {own} is open in another gateway: give each gateway its own"
            )
        try:
            start = _start(own, pool, config, policy, now=now, wall=wall(), incarnation=incarnation)
            made = cls(
                own,
                locked,
                start,
                wall=wall,
                segment_bytes=segment_bytes,
                keep_bytes=keep_bytes,
                on_health=on_health,
                on_synced=on_synced,
            )
        except OSError as error:
            os.close(locked)
            raise EventLogError(f"{own} cannot be written: {error.strerror}") from error
        except BaseException:
            os.close(locked)
            raise
        return made

    # --- what a gateway does and sees --------------------------------------------------------

    def append(self, event: Input, effects: Sequence[Effect]) -> None:
        """Log an input and what followed; written once this turn of the event loop is over."""
        if self._closed:
            raise ValueError("the event log is closed")
        seal = self._sealer.event
        self._lines.append(seal(event))
        for effect in effects:
            self._lines.append(seal(effect))
        self.last_now = event.now
        if self._turn is None:
            self._loop = asyncio.get_running_loop()
            self._turn = self._loop.call_soon(self._flush)

    @property
    def backlog(self) -> int:
        """Events that are not written yet."""
        return len(self._lines)

    @property
    def healthy(self) -> bool:
        """Whether what is appended gets written and synced."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why the log is not healthy."""
        return self._write_problem or self._sync_problem

    def rest(self) -> None:
        """Before `close`, end with a checkpoint: the next start then has nothing to replay.

        So it starts at once, and a program whose rules differ from this one's can go on.
        """
        try:
            while self._lines:
                self._write()
            self._rotate()
        except OSError as error:
            log.warning("the event log does not end with a checkpoint: %s", error.strerror)

    def close(self) -> None:
        """Write and sync what is left, and let the next gateway have the log; nothing after it."""
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()
        while self._lines:
            try:
                self._write()
            except OSError as error:
                log.error("%d events are lost: %s", len(self._lines), error.strerror)  # noqa: TRY400
                break
        problem = self._syncer.stop()
        if problem is not None:
            log.error("%s", problem)
        os.close(self._file.descriptor)
        os.close(self._locked)

    # --- writing -----------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write what is there; every try that fails is followed by another in a moment."""
        try:
            self._write()
            full = self._file.size >= self._full_at
            if not self._lines and (full or self._rotation_due):
                self._rotate()
        except OSError as error:
            self._write_problem = f"the event log is not written: {error.strerror}"
            self._again(RETRY_S)
        else:
            self._write_problem = None
            self._turn = None
            if self._lines:
                self._again(0.0)
        self._tell()

    def _again(self, delay_s: float) -> None:
        if self._loop is None:
            raise AssertionError("nothing was appended")
        self._turn = self._loop.call_later(delay_s, self._flush)

    def _write(self) -> None:
        """Write the next lines, or a part of them. Raises OSError, and then nothing is lost."""
        chosen: list[bytes] = []
        size = 0
        for line in self._lines:
            chosen.append(line)
            size += len(line)
            if size >= MOST_BYTES_A_TURN:
                break
        if not chosen:
            return
        written = self._file.write(b"".join(chosen))
        self.bytes_written += written
        self._syncer.written()
        for line in chosen:
            if written < len(line):
                self._lines[0] = line[written:]
                break
            self._lines.popleft()
            written -= len(line)

    # --- segments ----------------------------------------------------------------------------

    def _begin_segment(self, header: Header) -> tuple[Sealer, Appender]:
        """The segment with which this process starts, under its name and on disk at once."""
        part, path = self._names(header)
        sealer, file = self._begin(header, part)
        os.fsync(file.descriptor)
        part.rename(path)
        sync_directory(self._directory)
        drop_oldest(self._directory, self._keep_bytes)
        return sealer, file

    def _rotate(self) -> None:
        """Write on in a new segment; the thread sees to the full one. Raises OSError."""
        header = replace(
            self._header,
            segment=self._header.segment + 1,
            sequence=self._sealer.sequence,
            previous=self._sealer.digest,
            wall=self._wall(),
            now=self.last_now,
            state=checkpoint.dump(self.dispatcher),
        )
        part, path = self._names(header)
        full = self._file.descriptor
        self._sealer, self._file = self._begin(header, part)
        self._header = replace(header, state={})
        self._rotation_due = False
        self._syncer.rotated(Seal(full, self._file.descriptor, part, path))

    def _begin(self, header: Header, part: Path) -> tuple[Sealer, Appender]:
        sealer = Sealer(header.sequence, header.previous)
        file = begin(part, sealer.header(header))
        self.bytes_written += file.size
        self._full_at = file.size + self._segment_bytes  # a large checkpoint leaves as much room
        return sealer, file

    def _names(self, header: Header) -> tuple[Path, Path]:
        number = header.segment
        return segment_path(self._directory, number, PART), segment_path(self._directory, number)

    # --- health ------------------------------------------------------------------------------

    def _sync_told(self, problem: str | None) -> None:
        """In the thread: the event loop is told."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._sync_changed, problem)

    def _sync_changed(self, problem: str | None) -> None:
        """After a sync that failed nobody knows what of the segment is on disk: begin a new one."""
        self._rotation_due = self._rotation_due or self._sync_problem is not None
        self._sync_problem = problem
        self._tell()

    def _tell(self) -> None:
        if self.reason != self._reported:
            self._reported = self.reason
            if self.reason is not None:
                log.error("%s; it is tried again each second", self.reason)
            else:
                log.warning("the event log is written again")
            self._on_health(self.reason)


@dataclass(frozen=True, slots=True)
class _Start:
    """With what a process begins: the pool, and the header of its first segment."""

    dispatcher: Dispatcher
    header: Header


def _start(
    directory: Path,
    pool: str,
    config: PoolConfig,
    policy: Policy,
    *,
    now: float,
    wall: float,
    incarnation: str,
) -> _Start:
    """Raises EventLogError and OSError."""
    recovered = recover(directory)
    if recovered is None:
        dispatcher = Dispatcher(config, policy)
        segment, epoch, sealer = 1, 1, Sealer()
    else:
        if recovered.header.pool != pool:
            raise EventLogError(f"{directory} is the log of the pool {recovered.header.pool!r}")
        now = max(now, recovered.last_now)
        segment, epoch = recovered.segment.number + 1, recovered.epoch + 1
        sealer = _end(recovered, Restarted(now, epoch))
        # The settings may have changed since: the state goes on under today's.
        dispatcher = checkpoint.load(config, policy, checkpoint.dump(recovered.dispatcher))
    header = Header(
        pool=pool,
        segment=segment,
        incarnation=incarnation,
        epoch=epoch,
        sequence=sealer.sequence,
        previous=sealer.digest,
        wall=wall,
        now=now,
        policy=policy.name,
        config=config,
        state=checkpoint.dump(dispatcher),
    )
    return _Start(dispatcher, header)


def _end(recovered: Recovered, restarted: Restarted) -> Sealer:
    """Finish the last incarnation's segment: what it still owed, and that all of it is over."""
    sealer = recovered.sealer
    ended: list[Event] = [
        *recovered.owed,
        restarted,
        *recovered.dispatcher.apply(restarted),
    ]
    file = go_on(recovered.segment.path, recovered.size)
    try:
        file.write_all(b"".join(sealer.event(event) for event in ended))
        os.fsync(file.descriptor)
    finally:
        os.close(file.descriptor)
    return sealer
