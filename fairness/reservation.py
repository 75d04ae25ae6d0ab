"""Reservations over several limits at once: all of them are taken or none, and each is closed once.

A `LimitBook` belongs to one gateway. The limits travel in the demands, so a changed limit holds for
the next reservation and never refills a window. `queued` counts places held now; the others count
what was taken in the last sixty seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fairness.bucket import PERIOD_S, SlidingWindow
from fairness.types import RequestId

QUEUE_RETRY_S = 1.0
"""When a full queue is worth asking again: nobody can know when a place will be free."""


class Dimension(StrEnum):
    """What is limited; the value is the name that errors, metrics and commands use."""

    RPM = "rpm"
    TPM = "tpm"
    UNCACHED_TPM = "uncached_tpm"
    QUEUED = "queued"


@dataclass(frozen=True, slots=True)
class Demand:
    """`amount` of one dimension from one subject (a tenant or a key), whose limit `level` set."""

    subject: str
    dimension: Dimension
    amount: int
    limit: int
    level: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """Everything that was demanded is held until it is settled or abandoned."""

    request: RequestId
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was taken. The tightest limit is named; `retry_after_s` None means never."""

    dimension: Dimension
    level: str
    limit: int
    remaining: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Left:
    """What one limit still allows, and the seconds until it is whole again."""

    limit: int
    remaining: int
    reset_s: float


@dataclass(slots=True)
class _Subject:
    """One tenant's or key's windows and queue places, and how many open demands name it."""

    seen_at: float
    open: int = 0
    windows: dict[Dimension, SlidingWindow] = field(default_factory=dict)
    queued: int = 0

    def window(self, dimension: Dimension) -> SlidingWindow:
        return self.windows.setdefault(dimension, SlidingWindow())


@dataclass(slots=True)
class _Held:
    """One open reservation: the tick each demand was counted in, and whether it still queues."""

    demands: tuple[Demand, ...]
    ticks: tuple[int, ...]
    queues: bool = True


class LimitBook:
    """All windows and queue places of one gateway, by subject, and its open reservations."""

    def __init__(self) -> None:
        self._subjects: dict[str, _Subject] = {}
        self._held: dict[RequestId, _Held] = {}

    def reserve(
        self, now: float, request: RequestId, demands: Sequence[Demand]
    ) -> Reservation | Refusal:
        """Take every demand or none; a subject and dimension appear at most once in `demands`.

        Raises ValueError if `request` already holds a reservation.
        """
        if request in self._held:
            raise ValueError(f"request {request} already holds a reservation")
        self._forget_quiet(now)
        refusals = [refusal for demand in demands if (refusal := self._judge(now, demand))]
        if refusals:
            return max(refusals, key=_wait)
        held = tuple(demands)
        self._held[request] = _Held(held, tuple(self._take(now, demand) for demand in held))
        return Reservation(request, held)

    def leave_queue(self, request: RequestId) -> None:
        """The request was granted: its queue places are free, the rest stays reserved."""
        held = self._held.get(request)
        if held is None or not held.queues:
            return
        held.queues = False
        for demand in held.demands:
            if demand.dimension is Dimension.QUEUED:
                self._subjects[demand.subject].queued -= demand.amount

    def settle(self, now: float, request: RequestId, actual: Mapping[Dimension, int]) -> bool:
        """Replace what was reserved by what was used; a dimension left out keeps its reservation.

        Using more than was reserved counts from `now`. False if already closed or never reserved.
        """
        self.leave_queue(request)
        held = self._held.pop(request, None)
        if held is None:
            return False
        for demand, tick in zip(held.demands, held.ticks, strict=True):
            subject = self._touch(now, demand.subject)
            subject.open -= 1
            if demand.dimension is Dimension.QUEUED:
                continue
            window = subject.window(demand.dimension)
            unused = demand.amount - actual.get(demand.dimension, demand.amount)
            if unused >= 0:
                window.give_back(now, tick, unused)
            else:
                window.take(now, -unused)
        return True

    def abandon(self, now: float, request: RequestId) -> bool:
        """Give everything back, as if never reserved. False if already closed or never reserved."""
        return self.settle(now, request, dict.fromkeys(Dimension, 0))

    def left(
        self, now: float, subject: str, limits: Mapping[Dimension, int]
    ) -> dict[Dimension, Left]:
        """What `subject` may still take of each of `limits`."""
        known = self._subjects.get(subject) or _Subject(now)
        return {dimension: _left(now, known, dimension, limits[dimension]) for dimension in limits}

    def _judge(self, now: float, demand: Demand) -> Refusal | None:
        subject = self._subjects.get(demand.subject) or _Subject(now)
        left = _left(now, subject, demand.dimension, demand.limit)
        if demand.amount <= left.remaining:
            return None
        if demand.amount > demand.limit:
            wait = None
        elif demand.dimension is Dimension.QUEUED:
            wait = QUEUE_RETRY_S
        else:
            wait = subject.window(demand.dimension).wait_s(now, demand.amount, demand.limit)
        return Refusal(demand.dimension, demand.level, demand.limit, left.remaining, wait)

    def _take(self, now: float, demand: Demand) -> int:
        subject = self._touch(now, demand.subject)
        subject.open += 1
        if demand.dimension is Dimension.QUEUED:
            subject.queued += demand.amount
            return 0
        return subject.window(demand.dimension).take(now, demand.amount)

    def _touch(self, now: float, name: str) -> _Subject:
        # Moves the subject to the end, so that the quietest ones stand first.
        subject = self._subjects.pop(name, None) or _Subject(now)
        subject.seen_at = now
        self._subjects[name] = subject
        return subject

    def _forget_quiet(self, now: float) -> None:
        while self._subjects:
            name, subject = next(iter(self._subjects.items()))
            if now - subject.seen_at <= PERIOD_S + 1:
                return
            if subject.open:
                self._touch(now, name)
            else:
                del self._subjects[name]


def _left(now: float, subject: _Subject, dimension: Dimension, limit: int) -> Left:
    if dimension is Dimension.QUEUED:
        return Left(limit, max(0, limit - subject.queued), 0.0)
    window = subject.window(dimension)
    return Left(limit, max(0, limit - window.used(now)), window.reset_s(now))


def _wait(refusal: Refusal) -> float:
    return float("inf") if refusal.retry_after_s is None else refusal.retry_after_s
