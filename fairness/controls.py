"""Other policies behind the port, for comparisons: what people use, and what one could know.

None of them is what Evenhand runs; simulations and tests put them beside the Virtual Token Counter.
Least counter first, the cap per minute and both kinds of prediction are those of Sheng et al.,
"Fairness in Serving Large Language Models", OSDI 2024.
"""

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b

from fairness.bucket import SlidingWindow
from fairness.caps import UNIT
from fairness.cost import output_cost
from fairness.counters import Account, Ticket
from fairness.policy import FcfsPolicy, Policy, VtcPolicy
from fairness.types import Prices, RequestId, TenantId

TokensOf = Callable[[RequestId], int]
"""How many tokens a request will emit, over all its sequences."""

RECENT = 5  # answers of a tenant that predict its next one


class LcfPolicy(Policy):
    """The tenant served least since the start goes next: counters that nobody lifts.

    Time away is thereby credit: a tenant that comes back goes first until it has caught up. The
    books are the policy's own, for the pool's counters are lifted and may be forgotten.
    """

    name = "lcf"

    def __init__(self) -> None:
        self._service: Counter[TenantId] = Counter()

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """All service by weight, in milli-units."""
        return UNIT * self._service[account.tenant] // account.terms.weight_milli

    def slack(self, largest: int) -> int:
        """One largest request."""
        return largest

    def charged(self, account: Account, milli: int) -> None:
        """Write it down."""
        self._service[account.tenant] += milli


class RpmPolicy(FcfsPolicy):
    """First come, first served, but no tenant has more than `limit` requests accepted in a minute.

    A limit below 1 is a ValueError.
    """

    name = "rpm"

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a limit per minute admits at least one request")
        self.limit = limit
        self._accepted: dict[TenantId, SlidingWindow] = {}

    def refuses(self, now: float, tenant: TenantId) -> float | None:
        """Seconds until the minute has room, if it has none; else the request is counted."""
        window = self._accepted.setdefault(tenant, SlidingWindow())
        if wait := window.wait_s(now, 1, self.limit):
            return wait
        window.take(now, 1)
        return None


class _Foreseeing(VtcPolicy):
    """Virtual token counters that count, from the grant on, what a request is expected to emit.

    Emitted tokens are charged as ever and taken off the expectation, so the rank stays until more
    comes than was expected; what did not come is taken off at the end.
    """

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._expected: dict[RequestId, int] = {}  # tokens from the request's grant to its end
        self._open: Counter[TenantId] = Counter()  # of them, tokens still to come

    @abstractmethod
    def expect(self, ticket: Ticket) -> int:
        """How many tokens the request will emit."""

    def rank(self, account: Account, head: Ticket) -> int:  # noqa: ARG002 - the port's signature
        """The counter as it will be when what is expected has come."""
        pending = output_cost(self._prices, self._open[account.tenant])
        return (account.raw + UNIT * pending) // account.terms.weight_milli

    def granted(self, account: Account, ticket: Ticket) -> None:
        """Expect its answer."""
        expected = max(0, self.expect(ticket))
        self._expected[ticket.request] = expected
        self._open[account.tenant] += max(0, expected - ticket.output_tokens)

    def emitted(self, account: Account, ticket: Ticket, before: int) -> None:
        """Expect that much less."""
        expected = self._expected[ticket.request]
        self._open[account.tenant] -= max(0, expected - before) - self._left(ticket)

    def ended(self, account: Account, ticket: Ticket) -> None:
        """Expect no more."""
        self._open[account.tenant] -= self._left(ticket)
        del self._expected[ticket.request]

    def _left(self, ticket: Ticket) -> int:
        return max(0, self._expected[ticket.request] - ticket.output_tokens)


class PredictedVtcPolicy(_Foreseeing):
    """Expects the mean of the tenant's last five answers, and nothing of a tenant without one."""

    name = "vtc-predict"

    def __init__(self, prices: Prices | None = None) -> None:
        super().__init__(prices or Prices())
        self._recent: dict[TenantId, deque[int]] = {}

    def expect(self, ticket: Ticket) -> int:
        """The mean, rounded down."""
        recent = self._recent.get(ticket.tenant)
        return sum(recent) // len(recent) if recent else 0

    def ended(self, account: Account, ticket: Ticket) -> None:
        """Learn from an answer that was one."""
        super().ended(account, ticket)
        if ticket.output_tokens:
            recent = self._recent.setdefault(ticket.tenant, deque(maxlen=RECENT))
            recent.append(ticket.output_tokens)


class OracleVtcPolicy(_Foreseeing):
    """Expects what `tokens_of` says: with the true lengths, the best that prediction can do."""

    name = "vtc-oracle"

    def __init__(self, tokens_of: TokensOf, prices: Prices | None = None) -> None:
        super().__init__(prices or Prices())
        self._tokens_of = tokens_of

    def expect(self, ticket: Ticket) -> int:
        """What it was told."""
        return self._tokens_of(ticket.request)


def noisy(tokens_of: TokensOf, error: float, seed: int = 0) -> TokensOf:
    """Lengths that are wrong by a share drawn evenly from [-error, error], once per request."""

    def guess(request: RequestId) -> int:
        digest = blake2b(f"{seed}/{request}".encode(), digest_size=8).digest()
        drawn = int.from_bytes(digest, "big") / (1 << 64)
        return round(tokens_of(request) * (1 + error * (2 * drawn - 1)))

    return guess
