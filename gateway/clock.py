"""A pool's clock: Unix seconds that never go back, within a process or from one to the next.

The event log is read by people, so its times must mean something outside this process; the fair
queue measures waits with them, so they must be steady. The wall clock is looked at once.
"""

import time
from collections.abc import Callable


def pool_clock(not_before: float = 0.0) -> Callable[[], float]:
    """Unix seconds at the steady clock's pace, from now or from `not_before` where that is later.

    `not_before` is the last moment that an earlier process of the same pool recorded.
    """
    base = max(time.time(), not_before) - time.monotonic()
    return lambda: base + time.monotonic()
