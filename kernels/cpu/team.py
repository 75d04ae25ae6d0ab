"""The threads that compute on a CPU, started once and shared by everything one model computes."""

import os
import weakref
from pathlib import Path
from typing import Final

from kernels.cpu.library import native

MAX_THREADS: Final = 1024  # EVH_MAX_THREADS
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


class Team:
    """`threads` threads, whoever calls included; they sleep while nothing is computed.

    A team as large as the process has cores gives every thread its own, and a caller's thread one
    for the time of the call; a smaller team stays wherever the system puts it. Calls from several
    threads take turns. The threads belong to the process that made them: a forked child makes its
    own team. Raises ValueError for a number outside 1 to 1024, OSError if the system refuses.
    """

    def __init__(self, threads: int) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"{threads} threads are not 1 to {MAX_THREADS}")
        self.threads = threads
        self.handle = native().evh_team_create(threads, threads == available_cores() > 1)
        if self.handle is None:
            raise OSError(f"the system does not give this process {threads} threads")
        closing = weakref.finalize(self, native().evh_team_destroy, self.handle)
        closing.atexit = False  # a thread may compute to the last; the threads end with the process


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """Threads that compute fastest: as many as the cores this process and its container have.

    A container with a quota of time sees all cores of its machine; threads beyond the quota would
    only spin it away.
    """
    cores = min(available_cores(), MAX_THREADS)
    if not _QUOTA.exists():
        return cores
    quota, period = _QUOTA.read_text(encoding="ascii").split()
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
