"""The files of a pool's event log: their names, their lines, and who may write them.

Below the log's directory each pool has one of its own; its segments are `00000001.log` and so on. A
name that ends in `.part` is a segment that was begun and may not be on disk whole yet.
"""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

SUFFIX = ".log"
PART = ".part"
_DIGITS = 8
_LONGEST_NAME = 255


class EventLogError(Exception):
    """An event log cannot be read, continued or written; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a pool's log; one that was only begun may get its last name at any time."""

    number: int
    path: Path

    @property
    def size(self) -> int:
        """Its bytes. Raises OSError."""
        return self._there().stat().st_size

    def lines(self) -> Iterator[bytes]:
        """Its lines with their line ends, which the last may lack. Raises OSError."""
        with self._there().open("rb") as file:
            yield from file

    def _there(self) -> Path:
        return self.path if self.path.exists() else self.path.with_suffix(SUFFIX)


def pool_directory(root: Path, pool: str) -> Path:
    """Where a pool's segments are; its name is made safe for a file. Raises EventLogError."""
    name = quote(pool, safe=" @+=,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if not name or len(name) > _LONGEST_NAME:
        raise EventLogError(f"the pool's name cannot name a directory: {pool!r}")
    return root / name


def segment_path(directory: Path, number: int, suffix: str = SUFFIX) -> Path:
    """The file of the segment with this number."""
    return directory / f"{number:0{_DIGITS}}{suffix}"


def segments(directory: Path, suffix: str = SUFFIX) -> list[Segment]:
    """The segments in a pool's directory, in order. Raises OSError."""
    found = [
        Segment(int(path.stem), path)
        for path in directory.iterdir()
        if path.suffix == suffix and path.stem.isdecimal()
    ]
    return sorted(found, key=lambda segment: segment.number)


def pools(root: Path) -> list[Path]:
    """The directories of pools that have a log below `root`. Raises OSError."""
    return [path for path in sorted(root.iterdir()) if path.is_dir() and segments(path)]


def lock(directory: Path) -> int | None:
    """A descriptor that keeps other writers out while it is open; None if there is one already.

    Raises OSError.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class Appender:
    """Writes on at the end of a file, of which `size` bytes are known to be there.

    A write that fails may have left something behind those; the next one cuts it off first.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self.size = size
        self._doubtful = False

    def write(self, data: bytes) -> int:
        """Write the beginning of `data`, as much as fits; returns its bytes. Raises OSError."""
        if self._doubtful:
            os.ftruncate(self.descriptor, self.size)
        self._doubtful = True
        written = os.write(self.descriptor, data)
        self._doubtful = False
        self.size += written
        return written

    def write_all(self, data: bytes) -> None:
        """Write `data`. Raises OSError, and then some of it may be written."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(bytes(rest)) :]


def begin(path: Path, first: bytes) -> Appender:
    """A new file that begins with `first`. Raises OSError, and then there is no new file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    file = Appender(os.open(path, flags, 0o600), 0)
    try:
        file.write_all(first)
    except OSError:
        os.close(file.descriptor)
        path.unlink()
        raise
    return file


def go_on(path: Path, size: int) -> Appender:
    """A file to write on after `size` bytes; what follows them is cut off. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    os.ftruncate(descriptor, size)
    return Appender(descriptor, size)


def sync_directory(directory: Path) -> None:
    """Bring the directory's entries to disk. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
