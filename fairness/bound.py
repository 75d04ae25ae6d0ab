"""How far apart two backlogged tenants' counters can be, written as terms an admin can act on.

docs/fairness.md proves it. Every term is in normalised milli-units, rounded up.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fairness.cost import output_cost, prompt_cost
from fairness.counters import Account
from fairness.types import Prices


@dataclass(frozen=True, slots=True)
class BoundTerms:
    """The spread bound is their sum.

    `jump`: the most one tenant can be charged after its last grant, U/weight. `refund`: the most
    one can get back, A/weight. `floor_lag`: the most the smallest counter can be above the floor,
    M. `held_over`: what limits or weights that have since become tighter still allow.
    """

    jump: int = 0
    refund: int = 0
    floor_lag: int = 0
    held_over: int = 0

    @property
    def total(self) -> int:
        """The spread bound."""
        return self.jump + self.refund + self.floor_lag + self.held_over


def sequence_cap(account: Account, credit: int) -> int:
    """N: sequences the tenant can have in flight in a pool of `credit` slots and look-ahead."""
    return min(credit, account.terms.concurrency)


def jump(account: Account, credit: int, prices: Prices) -> int:
    """U/weight: one largest prompt, and the output of all sequences the tenant can have running."""
    output = sequence_cap(account, credit) * account.terms.max_output_tokens
    prompt = prompt_cost(prices, account.terms.max_prompt_tokens)
    return account.normalised(prompt + output_cost(prices, output))


def refund_cap(account: Account, credit: int, prices: Prices) -> int:
    """The cap on A/weight: the prompts of all sequences the tenant can have in flight.

    Never less than what is unsettled now, which older limits may have let in.
    """
    tokens = sequence_cap(account, credit) * account.terms.max_prompt_tokens
    return account.normalised(max(prompt_cost(prices, tokens), account.unsettled))


def spread(backlogged: Collection[Account]) -> int:
    """The largest counter less the smallest."""
    counters = [account.counter for account in backlogged]
    return max(counters) - min(counters) if counters else 0


def bound_terms(
    backlogged: Collection[Account], credit: int, prices: Prices, floor_lag: int
) -> BoundTerms:
    """The terms of the spread bound over the tenants that are backlogged now."""
    if not backlogged:
        return BoundTerms(floor_lag=floor_lag)
    most_jump = max(jump(account, credit, prices) for account in backlogged)
    most_refund = max(refund_cap(account, credit, prices) for account in backlogged)
    reach = max(account.reach for account in backlogged)
    dip = max(account.dip for account in backlogged)
    held_over = max(0, reach - most_jump - floor_lag) + max(0, dip - most_refund)
    return BoundTerms(most_jump, most_refund, floor_lag, held_over)
