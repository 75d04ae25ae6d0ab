"""The bound's terms from the limits alone, as docs/fairness.md writes them, for the audit's book.

Nothing here is shared with the dispatcher: a wrong formula there does not excuse itself here.
"""

from dataclasses import dataclass

from fairness.types import PoolConfig, TenantTerms


def norm(milli: int, weight_milli: int) -> int:
    """An amount divided by a weight in thousandths, rounded up."""
    return -(-1_000 * milli // weight_milli)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one tenant, in milli-units: `largest` request, `slack` R, `jump` U, `refund` cap on A."""

    weight: int
    largest: int
    slack: int
    jump: int
    refund: int
    output: int

    @property
    def slack_norm(self) -> int:
        """Z: how far above the smallest counter the tenant may be granted."""
        return norm(self.slack, self.weight)

    @property
    def top_norm(self) -> int:
        """Z + U/weight: how far above the smallest counter it may come."""
        return self.slack_norm + norm(self.jump, self.weight)

    @property
    def refund_norm(self) -> int:
        """The cap on A/weight."""
        return norm(self.refund, self.weight)

    @property
    def stake(self) -> int:
        """X: what it adds to the deadlines of others."""
        return self.slack + self.jump + self.refund


def limits_of(terms: TenantTerms, credit: int, config: PoolConfig) -> Limits:
    """The limits in a pool whose replicas take `credit` sequences in all."""
    most = min(credit, terms.concurrency)
    prompt = config.prices.uncached * terms.max_prompt_tokens
    output = config.prices.output * terms.max_output_tokens
    largest = prompt + output
    return Limits(
        weight=terms.weight_milli,
        largest=largest,
        slack=config.slack_milli * largest // 1_000,
        jump=prompt + most * output,
        refund=most * prompt,
        output=most * output,
    )
