"""A file of a model, read at given places and never mapped.

Model files are untrusted and may change while we read them: touching a page of a mapped file that
was cut short kills the process, a short read is one clear error. Only regular files are opened, so
that a pipe or a device in a file's place cannot make us wait.
"""

import hashlib
import os
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from engine.protocol.text.errors import ModelFileError

_HASHED_AT_ONCE: Final = 1 << 20

_Stamp = tuple[int, int, int, int, int]
# Digests by what tells a file from others and from itself before a change. Gigabytes take seconds,
# and what the store compares with a pinned digest the loader asks for again.
_digests: Final[dict[_Stamp, bytes]] = {}


class ModelFile:
    """An open regular file, closed when nothing refers to it. `size`: its bytes when opened."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises ModelFileError."""
        self.path = path
        try:
            # A pipe without a writer would block a plain open.
            self._number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from error
        except ValueError as error:
            raise ModelFileError(path, "cannot be read: no file can have such a name") from error
        self._close = weakref.finalize(self, os.close, self._number)
        status = os.fstat(self._number)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(path, "cannot be read: it is not a regular file")
        self.size = status.st_size

    def read(self, offset: int, length: int) -> bytearray:
        """`length` bytes from `offset`; both lie within `size`. Raises ModelFileError."""
        buffer = bytearray(length)
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: Any) -> None:
        """Fill a writable buffer of bytes from `offset`; raises ModelFileError."""
        rest = memoryview(buffer).cast("B")
        while rest:
            try:
                count = os.preadv(self._number, [rest], offset)
            except OSError as error:
                raise unreadable(self.path, error) from error
            if not count:
                raise ModelFileError(self.path, "became shorter while it was read")
            rest = rest[count:]
            offset += count

    def sha256(self, progress: Callable[[int], object] = lambda _done: None) -> bytes:
        """The digest of its first `size` bytes; raises ModelFileError.

        Computed once in a process while the file is not changed; `progress` gets the bytes done.
        """
        stamp = self._stamp()
        known = _digests.get(stamp)
        if known is not None:
            return known
        digest = self._computed_sha256(progress)
        if self._stamp() == stamp:
            _digests[stamp] = digest
        return digest

    def _computed_sha256(self, progress: Callable[[int], object]) -> bytes:
        total = hashlib.sha256()
        buffer = memoryview(bytearray(min(self.size, _HASHED_AT_ONCE)))
        for at in range(0, self.size, _HASHED_AT_ONCE):
            piece = buffer[: min(_HASHED_AT_ONCE, self.size - at)]
            self.read_into(at, piece)
            total.update(piece)
            progress(at + len(piece))
        return total.digest()

    def _stamp(self) -> _Stamp:
        status = os.fstat(self._number)
        return status.st_dev, status.st_ino, self.size, status.st_mtime_ns, status.st_ctime_ns

    def close(self) -> None:
        """Let go of the file."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def unreadable(path: Path, error: OSError) -> ModelFileError:
    """What the operating system said when it would not open or read `path`."""
    return ModelFileError(path, f"cannot be read: {error.strerror or type(error).__name__}")
