"""How far apart two backlogged tenants' counters can be, written as terms an admin can act on.

docs/fairness.md proves it. Every term is in normalised milli-units, rounded up.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fairness.counters import Account


@dataclass(frozen=True, slots=True)
class BoundTerms:
    """The spread bound is their sum.

    `slack`: how far above the smallest counter the tenant of the largest reach may be granted, Z.
    `jump`: the most that tenant can be charged after its last grant, U/weight. `refund`: the most
    one can get back, A/weight. `floor_lag`: the most the smallest counter can be above the floor,
    M. `held_over`: what limits or weights that have since become tighter still allow.
    """

    slack: int = 0
    jump: int = 0
    refund: int = 0
    floor_lag: int = 0
    held_over: int = 0

    @property
    def total(self) -> int:
        """The spread bound."""
        return self.slack + self.jump + self.refund + self.floor_lag + self.held_over


def spread(backlogged: Collection[Account]) -> int:
    """The largest counter less the smallest."""
    counters = [account.counter for account in backlogged]
    return max(counters) - min(counters) if counters else 0


def bound_terms(backlogged: Collection[Account], floor_lag: int) -> BoundTerms:
    """The terms of the spread bound over the tenants that are backlogged now."""
    if not backlogged:
        return BoundTerms(floor_lag=floor_lag)
    slack, jump = max(
        ((account.caps.slack_norm, account.caps.jump_norm) for account in backlogged), key=sum
    )
    most_refund = max(account.refund_cap for account in backlogged)
    reach = max(account.reach for account in backlogged)
    dip = max(account.dip for account in backlogged)
    held_over = max(0, reach - slack - jump - floor_lag) + max(0, dip - most_refund)
    return BoundTerms(slack, jump, most_refund, floor_lag, held_over)
