"""Brings what an event log wrote to the disk, in a thread: one fsync for all of the last moments.

What was written survives the death of the process at once, and the loss of power after a sync. A
finished segment is synced before the next one gets its name, so on disk a log never has a hole.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from gateway.eventfiles import segments, sync_directory


@dataclass(frozen=True, slots=True)
class Seal:
    """A segment is full: sync and close it, then give the next one, begun as `part`, its name."""

    full: int
    next: int
    part: Path
    path: Path


class Syncer:
    """Owns the thread. `written` and `rotated` are called by the log's own thread.

    `on_state` is called from the thread, with what is wrong or None, whenever that changes;
    `on_synced` after each sync, with its seconds. A failed sync is tried again after `retry_s`.
    """

    def __init__(
        self,
        directory: Path,
        descriptor: int,
        *,
        keep_bytes: int,
        interval_s: float,
        retry_s: float,
        on_state: Callable[[str | None], None],
        on_synced: Callable[[float], None],
    ) -> None:
        self._directory = directory
        self._descriptor = descriptor
        self._keep_bytes = keep_bytes
        self._interval_s = interval_s
        self._retry_s = retry_s
        self._on_state = on_state
        self._on_synced = on_synced
        self._wake = threading.Condition()
        self._stopping = threading.Event()
        self._dirty = False
        self._seals: list[Seal] = []
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="event-log-sync", daemon=True)
        self._thread.start()

    def written(self) -> None:
        """Something was written since the last sync."""
        with self._wake:
            self._dirty = True
            self._wake.notify()

    def rotated(self, seal: Seal) -> None:
        """Writing goes on in the next segment; the full one is the thread's to close."""
        with self._wake:
            self._seals.append(seal)
            self._descriptor = seal.next
            self._dirty = True
            self._wake.notify()

    def stop(self) -> str | None:
        """Sync what is left once more and end the thread; what is wrong, if that failed."""
        with self._wake:
            self._stopping.set()
            self._wake.notify()
        self._thread.join()
        return self._problem

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._dirty or self._stopping.is_set())
                last = self._stopping.is_set()
            try:
                self._sync()
            except OSError as error:
                self._tell(f"the event log is not synced to disk: {error.strerror}")
            else:
                self._tell(None)
            if last:
                return
            self._stopping.wait(self._retry_s if self._problem else self._interval_s)

    def _sync(self) -> None:
        """Raises OSError, and then whatever was not done is done the next time."""
        with self._wake:
            if not self._dirty:
                return
            seals, descriptor = tuple(self._seals), self._descriptor
            self._dirty = False
        started = monotonic()
        try:
            for seal in seals:
                self._finish(seal)
                with self._wake:
                    self._seals.remove(seal)
            os.fsync(descriptor)
        except OSError:
            with self._wake:
                self._dirty = True
            raise
        self._on_synced(monotonic() - started)

    def _finish(self, seal: Seal) -> None:
        """Raises OSError, and may then be called again."""
        os.fsync(seal.full)
        os.fsync(seal.next)
        if seal.part.exists():
            seal.part.rename(seal.path)
        sync_directory(self._directory)
        drop_oldest(self._directory, self._keep_bytes)
        os.close(seal.full)

    def _tell(self, problem: str | None) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_state(problem)


def drop_oldest(directory: Path, keep_bytes: int) -> None:
    """Delete the oldest segments while all together are too large; never the last one.

    Raises OSError.
    """
    kept = segments(directory)
    total = sum(segment.size for segment in kept)
    for segment in kept[:-1]:
        if total <= keep_bytes:
            return
        total -= segment.size
        segment.path.unlink()
