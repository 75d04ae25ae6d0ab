"""A sliding window of one minute: in no sixty seconds does what it admits exceed the limit.

Amounts are integers. Time is cut into ticks of a quarter second, and an amount counts until its
whole tick is sixty seconds old, so the promise is exact and a slot opens at most one tick late.
The limit is an argument, not state: a changed limit judges what the window already holds.
"""

from dataclasses import dataclass, field

PERIOD_S = 60
TICKS_PER_S = 4
_PERIOD_TICKS = PERIOD_S * TICKS_PER_S


def tick_of(now: float) -> int:
    """The tick that holds `now`."""
    return int(now * TICKS_PER_S // 1)


@dataclass(slots=True)
class SlidingWindow:
    """What was taken in the last minute, by tick. `total` is the sum of `taken`."""

    taken: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def used(self, now: float) -> int:
        """What counts against the limit at `now`; drops what is older."""
        oldest = tick_of(now) - _PERIOD_TICKS
        while self.taken and (tick := next(iter(self.taken))) < oldest:
            self.total -= self.taken.pop(tick)
        return self.total

    def take(self, now: float, amount: int) -> int:
        """Count `amount` from `now` on; the answer names the tick to give back to."""
        self.used(now)
        # A clock that stepped back must not break the order that expiry relies on.
        tick = max(tick_of(now), next(reversed(self.taken), 0))
        self.taken[tick] = self.taken.get(tick, 0) + amount
        self.total += amount
        return tick

    def give_back(self, now: float, tick: int, amount: int) -> None:
        """Return `amount` taken at `tick`, unless that tick has already slid out."""
        self.used(now)
        if tick not in self.taken:
            return
        returned = min(amount, self.taken[tick])
        self.total -= returned
        self.taken[tick] -= returned
        if self.taken[tick] == 0:
            del self.taken[tick]

    def wait_s(self, now: float, amount: int, limit: int) -> float | None:
        """Seconds until `amount` fits under `limit` if nothing else comes; None if it never can."""
        if amount > limit:
            return None
        excess = self.used(now) + amount - limit
        if excess <= 0:
            return 0.0
        for tick, taken in self.taken.items():
            excess -= taken
            if excess <= 0:
                return _opens_at(tick) - now
        raise AssertionError("the window's total is not the sum of its ticks")

    def reset_s(self, now: float) -> float:
        """Seconds until the window is empty if nothing else comes."""
        if self.used(now) == 0:
            return 0.0
        return _opens_at(next(reversed(self.taken))) - now


def _opens_at(tick: int) -> float:
    return (tick + _PERIOD_TICKS + 1) / TICKS_PER_S
