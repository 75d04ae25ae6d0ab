"""The SHA-256 of model files, computed once in a process while a file stays what it is.

What the store has checked against a pinned digest, a loader that keys its cache by the same digest
need not read again: gigabytes take seconds.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

# Called with bytes done, bytes in all (None while unknown), and what is being done.
Progress = Callable[[int, int | None, str], None]

_CHUNK: Final = 1 << 20
# By path, with what tells a changed file from the one that was read.
_known: Final[dict[Path, tuple[tuple[int, ...], bytes]]] = {}


def file_digest(path: Path, progress: Progress | None = None) -> bytes:
    """The 32 bytes; raises OSError. A file counts as unchanged by inode, size and time of change.

    A file that was written at while it was read is not remembered.
    """
    stamp = _stamp(path)
    remembered = _known.get(path)
    if remembered is not None and remembered[0] == stamp:
        return remembered[1]
    digest = _computed(path, stamp, progress)
    if _stamp(path) == stamp:
        _known[path] = stamp, digest
    return digest


def _computed(path: Path, stamp: tuple[int, ...], progress: Progress | None) -> bytes:
    if progress is None:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    total, done = stamp[2], 0
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress(done, total, "verifying")
    return digest.digest()


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
