"""Virtual time: actions run in the order of their time, and `now` jumps from one to the next."""

import heapq
from collections.abc import Callable
from itertools import count
from math import inf

Action = Callable[[], None]


class VirtualTime:
    """A heap of actions by time in seconds; those of one moment run in the order of adding."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def at(self, when: float, action: Action) -> None:
        """Let `action` run at `when`. Raises ValueError for a time that has passed."""
        if when < self.now:
            raise ValueError(f"it is {self.now} already, too late for {when}")
        heapq.heappush(self._heap, (when, next(self._order), action))

    def run(self, until: float = inf) -> None:
        """Run actions, and what they add, up to and including `until`; then it is `until`."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            action()
        if until < inf:
            self.now = until
