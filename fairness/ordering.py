"""The tenant with the smallest key, when keys mostly rise: a heap that looks again only at its top.

Keys live with their owner and are read through a function; None means "not a candidate". A rise or
a withdrawal needs no notice. A fall or a new candidate must be offered. Ties go to the smaller id.
"""

import heapq
from collections.abc import Callable

from fairness.types import TenantId


class LazyMinHeap:
    """Candidates by key. Every candidate has one entry, recorded at or below its true key."""

    def __init__(self, key: Callable[[TenantId], int | None]) -> None:
        self._key = key
        self._entries: list[tuple[int, TenantId]] = []
        self._recorded: dict[TenantId, int] = {}

    def offer(self, member: TenantId) -> None:
        """Say that `member` became a candidate or that its key may have fallen."""
        key = self._key(member)
        recorded = self._recorded.get(member)
        if key is not None and (recorded is None or key < recorded):
            self._recorded[member] = key
            heapq.heappush(self._entries, (key, member))

    def least(self) -> TenantId | None:
        """The candidate with the smallest key; None when there is none."""
        entries = self._entries
        while entries:
            recorded, member = entries[0]
            if self._recorded.get(member) != recorded:
                heapq.heappop(entries)
                continue
            key = self._key(member)
            if key is None:
                heapq.heappop(entries)
                del self._recorded[member]
            elif key > recorded:
                self._recorded[member] = key
                heapq.heapreplace(entries, (key, member))
            else:
                return member
        return None
