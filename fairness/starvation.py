"""What keeps a head from waiting for ever: its deadline, and a lane that is urgent within a budget.

An age limit that overrides fairness without a budget is first come, first served under overload.
Here a late head may go early only out of a small share of the pool's own service.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fairness.caps import UNIT
from fairness.counters import Ticket

WINDOW_S = 1.0
KEPT_SAMPLES = 64
LEAST_SAMPLES = 8


@dataclass(slots=True)
class RateMeter:
    """The pool's service rate, sampled over windows in which somebody was backlogged throughout.

    Rates are milli-units per second, 0 while too little was seen. `window` is the running window's
    start and the pool's service then.
    """

    samples: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    window: tuple[float, int] | None = None
    low: int = 0
    usual: int = 0

    def advance(self, now: float, service: int, *, backlogged: bool) -> None:
        """Time has come to `now`; `service` is the pool's total, `backlogged` held since last."""
        if not backlogged:
            self.window = None
        elif self.window is None:
            self.window = (now, service)
        elif now - self.window[0] >= WINDOW_S:
            started, then = self.window
            self.samples.append(int((service - then) / (now - started)))
            self.window = (now, service)
            self.refresh()

    def refresh(self) -> None:
        """Work out both rates: the tenth percentile, and the mean.

        The median would miss prompts that are long and few: they are charged in one lump.
        """
        if len(self.samples) >= LEAST_SAMPLES:
            ordered = sorted(self.samples)
            self.low = max(0, ordered[len(ordered) // 10])
            self.usual = max(0, sum(ordered) // len(ordered))


@dataclass(slots=True)
class UrgentLane:
    """A token bucket filled by a share of all service; urgent grants borrow from it.

    `level` is in thousandths of milli-units, so that the share divides nothing. What is taken at a
    grant is the most the request can cost; what it did not use comes back. `served` is what urgent
    requests were really charged.
    """

    share_milli: int
    level: int = 0
    served: int = 0
    grants: int = 0

    def cap(self, depth: int) -> None:
        """The bucket holds no more than one largest request."""
        self.level = min(self.level, UNIT * depth)

    def affords(self, cost: int, depth: int) -> bool:
        """Whether a request of this cost may go.

        A request that costs more than a full bucket goes when it is full, and leaves a debt.
        """
        return self.level >= UNIT * min(cost, depth)

    def lend(self, ticket: Ticket, cost: int) -> None:
        """An urgent grant: take what the request can cost at most."""
        self.level -= UNIT * cost
        ticket.urgent_cost = cost
        ticket.urgent_spent = 0
        self.grants += 1

    def filled(self, ticket: Ticket, milli: int) -> None:
        """Something was charged, negative for what was given back."""
        self.level += self.share_milli * milli
        if ticket.urgent_cost is not None:
            ticket.urgent_spent += milli
            self.served += milli

    def settle(self, ticket: Ticket) -> None:
        """The request is in flight no longer: what it did not use comes back."""
        if ticket.urgent_cost is not None:
            self.level += UNIT * (ticket.urgent_cost - ticket.urgent_spent)
            ticket.urgent_cost = None


Due = tuple[float, int, Ticket]
"""A deadline, the request's arrival, the request."""


class Deadlines:
    """The running deadlines of heads, and those that have passed, oldest first.

    An entry counts only while its request waits with just this deadline.
    """

    def __init__(self) -> None:
        self._running: list[Due] = []
        self._overdue: deque[Due] = deque()
        self._unreported: list[Due] = []

    def start(self, ticket: Ticket) -> None:
        """The request waits with a running deadline."""
        if ticket.deadline is None:
            raise AssertionError(f"request {ticket.request} has no deadline")
        heappush(self._running, (ticket.deadline, ticket.arrival, ticket))

    def _advance(self, now: float) -> None:
        """Move what is due at `now` among the overdue."""
        while self._running and self._running[0][0] <= now:
            due = heappop(self._running)
            if _holds(due):
                self._put_in_order(due)
                if not due[2].missed:
                    self._unreported.append(due)

    def _put_in_order(self, due: Due) -> None:
        """Deadlines fall due in order, but for a request that comes back with an old one."""
        if self._overdue and _order(due) < _order(self._overdue[-1]):
            insort(self._overdue, due, key=_order)
        else:
            self._overdue.append(due)

    def overdue(self, now: float) -> Iterator[Ticket]:
        """Requests past their deadline that still wait, oldest deadline first.

        Entries of those that left are dropped when they come to the front.
        """
        self._advance(now)
        overdue = self._overdue
        while overdue and not _holds(overdue[0]):
            overdue.popleft()
        for due in overdue:
            if _holds(due):
                yield due[2]

    def unreported(self, now: float) -> list[Ticket]:
        """Those of them whose miss was not logged yet; one may be named twice."""
        self._advance(now)
        if self._unreported:
            self._unreported = sorted(
                (due for due in self._unreported if _holds(due) and not due[2].missed), key=_order
            )
        return [due[2] for due in self._unreported]


def _holds(due: Due) -> bool:
    deadline, _, ticket = due
    return bool(ticket.stamp) and ticket.deadline == deadline


def _order(due: Due) -> tuple[float, int]:
    return due[:2]
