"""The largest of many changing numbers, and the member with the smallest of many changing keys."""

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush, heapreplace

from fairness.types import TenantId


class Largest:
    """The largest of a changing bag of numbers, 0 of an empty one."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._heap: list[int] = []

    def change(self, old: int | None, new: int | None) -> None:
        """Take `old` out and put `new` in."""
        if old == new:
            return
        if old is not None:
            self._counts[old] -= 1
        if new is not None:
            if self._counts[new] == 0:
                heappush(self._heap, -new)
            self._counts[new] += 1

    @property
    def value(self) -> int:
        """The largest number in the bag."""
        while self._heap:
            found = -self._heap[0]
            if self._counts[found] > 0:
                return found
            heappop(self._heap)
            del self._counts[found]
        return 0


class Least:
    """The tenant with the smallest key; ties go to the smaller id.

    Keys are read through a function that gives None for who is not in it. A key may rise unseen;
    one that may have fallen, or come in, has to be offered.
    """

    def __init__(self, key: Callable[[TenantId], int | None]) -> None:
        self._key = key
        self._noted: dict[TenantId, int] = {}
        self._heap: list[tuple[int, TenantId]] = []

    def offer(self, name: TenantId) -> None:
        """Look at a tenant's key."""
        key = self._key(name)
        if key is not None and key < self._noted.get(name, key + 1):
            self._noted[name] = key
            heappush(self._heap, (key, name))

    @property
    def name(self) -> TenantId | None:
        """Whose key is the smallest now."""
        while self._heap:
            noted, name = self._heap[0]
            key = self._key(name)
            if self._noted.get(name) != noted:
                heappop(self._heap)
            elif key is None:
                heappop(self._heap)
                del self._noted[name]
            elif key != noted:
                self._noted[name] = key
                heapreplace(self._heap, (key, name))
            else:
                return name
        return None
