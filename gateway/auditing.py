"""Audits the event logs below a directory: reads their files one line at a time."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from fairness.audit import Auditor
from fairness.audit_report import Report
from fairness.journal import Header, LineError, read_entries, read_header
from gateway.eventfiles import PART, EventLogError, Segment, pool_directory, pools, segments
from gateway.eventrecovery import goes_on

Span = tuple[float | None, float | None]
PLOTTED = 200
"""Windows into which a plot's time is cut."""


def logs_below(directory: Path, pool: str | None) -> list[Path]:
    """The directories of the pools to audit: of one pool, or of all. Raises EventLogError.

    `directory` may also be one pool's own.
    """
    try:
        if pool is not None:
            own = pool_directory(directory, pool)
            found = [own] if own.is_dir() and segments(own) else []
        elif directory.is_dir() and segments(directory):
            found = [directory]
        else:
            found = pools(directory)
    except OSError as error:
        raise EventLogError(f"{directory} cannot be read: {error.strerror}") from error
    if not found:
        raise EventLogError(f"there is no event log below {directory}")
    return found


def audit_log(
    directory: Path,
    *,
    span: Span = (None, None),
    window_s: float | None = None,
    on_bytes: Callable[[int], None] = lambda _bytes: None,
) -> Report:
    """Audit one pool's log. Only what is needed for the span is read. Raises EventLogError.

    `on_bytes` is told how many bytes were read, line by line.
    """
    auditor = Auditor(span=span, window_s=window_s)
    try:
        known = _readable(directory)
        for segment in _needed(known, span):
            lines = _counted(segment.lines(), on_bytes)
            auditor.segment(segment.number, lines, last=segment is known[-1])
    except FileNotFoundError as error:
        raise EventLogError(
            f"{error.filename} was dropped while it was to be read: run it again"
        ) from error
    except OSError as error:
        raise EventLogError(f"{directory} cannot be read: {error.strerror}") from error
    return auditor.finish()


def bytes_of(directory: Path, span: Span) -> int:
    """How many bytes `audit_log` is going to read. Raises OSError."""
    return sum(segment.size for segment in _needed(_readable(directory), span))


def fine_window_s(directory: Path, span: Span) -> float:
    """A window such that a plot has enough of them, at least one second. Raises OSError."""
    known = _needed(_readable(directory), span)
    begin, end = span
    if begin is None and (header := _header(known[0])) is not None:
        begin = header.wall
    if end is None:
        end = _last_moment(known[-1])
    if begin is None or end is None:
        return 1.0
    return max(1.0, (end - begin) // PLOTTED)


def _readable(directory: Path) -> list[Segment]:
    """All segments, also one that was begun before its writer was killed."""
    known = segments(directory)
    for part in segments(directory, PART):
        if goes_on(known, part):
            known.append(part)
    return known


def _needed(known: list[Segment], span: Span) -> list[Segment]:
    """From the last segment that begins before the span, to the last that begins within it."""
    begin, end = span
    if begin is None and end is None:
        return known
    first, last = 0, len(known)
    for index, segment in enumerate(known):
        header = _header(segment)
        if header is None:
            continue
        if begin is not None and header.wall <= begin:
            first = index
        if end is not None and header.wall >= end:
            last = index
            break
    return known[first : max(last, first + 1)]


def _header(segment: Segment) -> Header | None:
    """A segment's header; None where there is none to be read."""
    try:
        return read_header(next(segment.lines(), b""))[0]
    except LineError:
        return None


def _last_moment(segment: Segment) -> float | None:
    """When a segment's last whole line was written; None where it has none to be read."""
    header, last = _header(segment), b""
    for line in segment.lines():
        last = line if line.endswith(b"\n") else last
    if header is None:
        return None
    try:
        entries = list(read_entries("", [last]))
    except LineError:
        return header.wall
    return entries[0].event.now - header.now + header.wall


def _counted(lines: Iterable[bytes], on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    for line in lines:
        on_bytes(len(line))
        yield line
