"""What work costs, in milli-units of service, and how much KV cache a request holds."""

from fairness.types import Prices


def prompt_cost(prices: Prices, tokens: int, cached: int = 0) -> int:
    """Milli-units for a prompt of `tokens`, of which `cached` were found in the prefix cache."""
    return prices.uncached * (tokens - cached) + prices.cached * cached


def output_cost(prices: Prices, tokens: int) -> int:
    """Milli-units for `tokens` emitted."""
    return prices.output * tokens


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-dividend // divisor)
