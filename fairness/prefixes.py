"""Which beginnings of prompts were sent to the pool lately: a guess at what its caches hold.

Beginnings are keyed hashes that the gateway made; the order of tenants never depends on them.
"""

from collections.abc import Iterable, Iterator

from fairness.counters import Ticket

KEPT = 4_096


class PrefixIndex:
    """The least-recently-used set of the last `KEPT` hashes."""

    def __init__(self, hashes: Iterable[int] = ()) -> None:
        self._known = dict.fromkeys(hashes)

    def __iter__(self) -> Iterator[int]:
        """Oldest first."""
        return iter(self._known)

    def touch(self, ticket: Ticket) -> None:
        """The request was sent: its beginnings are the freshest now."""
        for prefix in ticket.prefix:
            self._known.pop(prefix, None)
            self._known[prefix] = None
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]

    def length(self, ticket: Ticket) -> int:
        """How many of its beginnings, shortest first, are known without a gap."""
        for index, prefix in enumerate(ticket.prefix):
            if prefix not in self._known:
                return index
        return len(ticket.prefix)

    def clear(self) -> None:
        """The caches are gone."""
        self._known.clear()
