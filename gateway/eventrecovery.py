"""Recovers a pool from its event log: the last segment's checkpoint, and every event after it.

A process that was killed may have left its last line half written; that line is cut off. Any
other damage, and any effect that does not follow from what came in, is an error: to start from
counters of zero would forgive whoever owes most, so nobody but an operator may decide that.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairness.checkpoint import CheckpointError
from fairness.dispatcher import Dispatcher
from fairness.events import Event, Restarted
from fairness.journal import Header, LineError, Sealer, digest_of, read_entries, read_header
from fairness.replay import Replay, described, restored
from gateway.eventfiles import (
    PART,
    SUFFIX,
    EventLogError,
    Segment,
    segment_path,
    segments,
    sync_directory,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a segment came to. `owed` are effects of its last input that never got into the file.

    `size` is where its whole lines end, `last_now` the time of its last event.
    """

    segment: Segment
    header: Header
    dispatcher: Dispatcher
    sealer: Sealer
    epoch: int
    last_now: float
    size: int
    owed: tuple[Event, ...]


def recover(directory: Path) -> Recovered | None:
    """The pool as its log left it, None where there is no log yet.

    Raises EventLogError, and OSError where a file cannot be read. Call it under the log's lock.
    """
    _settle_part(directory)
    known = segments(directory)
    return _replayed(known[-1]) if known else None


def _settle_part(directory: Path) -> None:
    """A segment that was only begun counts if it goes on from the end of the one before.

    Where it does not, power was lost before the disk had either, and nothing was promised of it.
    """
    for part in segments(directory, PART):
        if goes_on(segments(directory), part):
            part.path.rename(segment_path(directory, part.number, SUFFIX))
        else:
            log.warning("%s was never on disk whole and is dropped", part.path)
            part.path.unlink()
        sync_directory(directory)


def goes_on(known: Iterable[Segment], part: Segment) -> bool:
    """Whether a segment that was only begun follows on one of the known. Raises OSError."""
    first = next(part.lines(), b"")
    try:
        header, _ = read_header(first)
    except LineError:
        return False
    if not first.endswith(b"\n"):
        return False
    for segment in known:
        if segment.number == part.number - 1:
            return header.previous == _last_digest(segment)
    return part.number == 1


def _last_digest(segment: Segment) -> str | None:
    """The digest of a segment's last line, if that is whole."""
    last = b""
    for line in segment.lines():
        last = line
    try:
        return digest_of(last) if last.endswith(b"\n") else None
    except LineError:
        return None


def _replayed(segment: Segment) -> Recovered:
    lines = _WholeLines(segment)
    try:
        header, digest = read_header(next(lines, b""))
        replay = Replay(restored(header, header.state))
        sealer, epoch, last_now = Sealer(header.sequence, digest), header.epoch, header.now
        for entry in read_entries(digest, lines):
            _check(segment, entry.line, entry.sequence == sealer.sequence, entry.event, "number")
            _check(segment, entry.line, entry.intact, entry.event, "digest")
            problem = replay.take(entry.event)
            if problem is not None:
                raise damaged(segment, entry.line, f"{described(entry.event)}: {problem}")
            sealer.sequence, sealer.digest = entry.sequence + 1, entry.digest
            last_now = max(last_now, entry.event.now)
            if isinstance(entry.event, Restarted):
                epoch = entry.event.epoch
    except LineError as error:
        raise damaged(segment, error.line, error.problem) from error
    except CheckpointError as error:
        raise damaged(segment, 1, str(error)) from error
    return Recovered(
        segment,
        header,
        replay.dispatcher,
        sealer,
        epoch,
        last_now,
        lines.size,
        tuple(replay.owed),
    )


def _check(segment: Segment, line: int, right: bool, event: Event, what: str) -> None:  # noqa: FBT001
    if not right:
        raise damaged(segment, line, f"{described(event)}: its {what} does not follow")


def damaged(segment: Segment, line: int, problem: str) -> EventLogError:
    """The error that says where a log is wrong and what can be done."""
    return EventLogError(
        f"{segment.path}, line {line}: {problem}. The pool's counters cannot be recovered from it."
        f" `evenhand audit fairness` shows what is wrong; to start with new counters, move"
        f" {segment.path.parent} away"
    )


class _WholeLines:
    """A segment's lines but for a half-written last one; `size` is how far they reach."""

    def __init__(self, segment: Segment) -> None:
        self.size = 0
        self._segment = segment
        self._lines = segment.lines()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        line = next(self._lines)
        if not line.endswith(b"\n"):
            log.warning(
                "%s ends in half a line, which is cut off: %d bytes", self._segment.path, len(line)
            )
            raise StopIteration
        self.size += len(line)
        return line
