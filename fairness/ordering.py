"""The account with the smallest key, when keys mostly rise: a heap that looks only at its top.

Keys live with their owner and are read through a function; None means "not a candidate". A rise or
a withdrawal needs no notice. A fall or a new candidate must be offered, and an account that never
comes back must be dropped. Ties go to the smaller id.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from fairness.counters import Account
from fairness.types import TenantId

_Entry = tuple[int, TenantId, int, Account]
SPARE = 64
"""So many entries may be out of date beyond as many as there are accounts."""


class LazyMinHeap:
    """Candidates by key. Every candidate has one entry, recorded at or below its true key."""

    def __init__(self, key: Callable[[Account], int | None]) -> None:
        self._key = key
        self._entries: list[_Entry] = []
        self._recorded: dict[Account, int] = {}

    def offer(self, account: Account) -> None:
        """Say that an account became a candidate or that its key may have fallen."""
        key = self._key(account)
        if key is None:
            return
        recorded = self._recorded.get(account)
        if recorded is None or key < recorded:
            self._recorded[account] = key
            # The serial keeps two accounts of one tenant, one after the other, from being compared.
            heappush(self._entries, (key, account.tenant, account.serial, account))
            self._tidy()

    def drop(self, account: Account) -> None:
        """The account never is a candidate again: let go of it."""
        if self._recorded.pop(account, None) is not None:
            self._tidy()

    def least(self) -> Account | None:
        """The candidate with the smallest key; None when there is none."""
        entries = self._entries
        while entries:
            recorded, tenant, serial, account = entries[0]
            key = self._key(account)
            if key == recorded:
                return account
            if self._recorded.get(account) != recorded:
                heappop(entries)  # offered again since, with a smaller key
            elif key is None:
                heappop(entries)
                del self._recorded[account]
            else:
                self._recorded[account] = key
                heapreplace(entries, (key, tenant, serial, account))
        return None

    def _tidy(self) -> None:
        """Leave out what is out of date, before it outweighs what is not."""
        recorded = self._recorded
        if len(self._entries) > 2 * len(recorded) + SPARE:
            self._entries = [entry for entry in self._entries if recorded.get(entry[3]) == entry[0]]
            heapify(self._entries)
