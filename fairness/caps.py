"""What one tenant's limits allow it at most: the terms of the bound, worked out once per change.

L, cap, the concurrency and the weight are enforced limits, so all of this holds before anything is
observed. docs/fairness.md names and uses the letters.
"""

from dataclasses import dataclass

from fairness.cost import output_cost, prompt_cost
from fairness.types import PoolConfig, TenantTerms

UNIT = 1_000
"""Weights are thousandths, so a charge in milli-units enters a counter this many times."""


@dataclass(slots=True)
class Caps:
    """Milli-units; a name with `_norm` is divided by the weight, rounded up.

    `largest`: one request of one sequence. `slack`: Z, as far above the smallest counter as the
    tenant may be granted. `jump`: U, one largest prompt and the output of all sequences it can have
    running. `refund`: the cap on A, the prompts of all those sequences. `work`: its own output and
    refunds. `stake`: slack, jump and refund together, what it adds to others' deadlines.
    """

    largest: int
    slack_norm: int
    jump_norm: int
    refund: int
    refund_norm: int
    work: int
    stake: int
    stake_norm: int


def normalised(milli: int, weight_milli: int) -> int:
    """An amount as a counter of this weight sees it, rounded up."""
    return -(-UNIT * milli // weight_milli)


def caps(terms: TenantTerms, credit: int, config: PoolConfig) -> Caps:
    """The caps under these terms in a pool of `credit` slots and look-ahead.

    N, the sequences the tenant can have in flight, is the smaller of the two.
    """
    prices, weight = config.prices, terms.weight_milli
    sequences = min(credit, terms.concurrency)
    prompt = prompt_cost(prices, terms.max_prompt_tokens)
    output = output_cost(prices, sequences * terms.max_output_tokens)
    largest = prompt + output_cost(prices, terms.max_output_tokens)
    slack = config.slack_milli * largest // UNIT
    refund = sequences * prompt
    stake = slack + prompt + output + refund
    return Caps(
        largest=largest,
        slack_norm=normalised(slack, weight),
        jump_norm=normalised(prompt + output, weight),
        refund=refund,
        refund_norm=normalised(refund, weight),
        work=output + refund,
        stake=stake,
        stake_norm=normalised(stake, weight),
    )
