"""How far tenants drift apart: the contract's three inequalities, and counters near the floor.

The limits are the largest that were in force, never the dispatcher's own figures. Tenants whose
terms changed while something was open are left to the live bound until that is past.
"""

from itertools import permutations

from tests.fairness.books import Books
from tests.fairness.outside import BACKLOGGED, Account, ceil, demand

ROUNDING = 2


class Bounds:
    """Looks after every event; demands what the policy promises and notes how near it came."""

    def __init__(self, books: Books, ratios: dict[str, float]) -> None:
        self.books = books
        self.ratios = ratios
        self.lag = 0
        self.ranges: dict[tuple[str, str], tuple[int, int]] = {}

    def check(self) -> None:
        books = self.books
        for account in books.accounts.values():
            self.lag = max(self.lag, account.most_refund)
        for tenant in books.altered:
            account = books.accounts[tenant]
            self.lag = max(self.lag, account.norm(account.unsettled))
        calm = [
            account
            for account in books.accounts.values()
            if account.state == BACKLOGGED and account.tenant not in books.altered
        ]
        names = {account.tenant for account in calm}
        for pair in [pair for pair in self.ranges if not names.issuperset(pair)]:
            del self.ranges[pair]
        for f, g in permutations(calm, 2):
            self._check_counters(f, g)
            if f.tenant < g.tenant:
                self._check_interval(f, g)

    def _check_counters(self, f: Account, g: Account) -> None:
        gap = f.counter - g.counter
        limit = f.most_slack + f.most_jump + g.most_refund + self.lag
        self._judge("pair", gap, limit, "c_f - c_g <= Z_f + U_f + A_g + M", f, g)

    def _check_interval(self, f: Account, g: Account) -> None:
        """The range of W_f/w - W_g/w since both are backlogged bounds it over every interval."""
        pair = f.tenant, g.tenant
        gap = self._normal(f) - self._normal(g)
        low, high = self.ranges.get(pair, (gap, gap))
        self.ranges[pair] = low, high = min(low, gap), max(high, gap)
        limit = self.lag + sum(t.most_slack + t.most_jump + t.most_refund for t in (f, g))
        self._judge("interval", high - low, limit, "|W_f - W_g| over an interval", f, g)

    def _judge(self, what: str, observed: int, limit: int, claim: str, f, g) -> None:
        if self.books.fair and observed > limit + ROUNDING:
            demand(False, claim, f.tenant, g.tenant, observed, limit)
        if observed > 0 and limit > 0:
            self.ratios[what] = max(self.ratios[what], observed / limit)

    @staticmethod
    def _normal(account: Account) -> int:
        return 1000 * account.service // account.terms.weight_milli

    def check_live(self, snapshot) -> None:
        """The bound that the pool shows, its terms, and each counter's place about the floor."""
        if self.books.fair:
            demand(snapshot.spread <= snapshot.spread_bound, "spread is within bound", snapshot)
        if snapshot.spread_bound:
            ratio = snapshot.spread / snapshot.spread_bound
            self.ratios["spread"] = max(self.ratios["spread"], ratio)
        terms = [getattr(snapshot.bound, name) for name in snapshot.bound.__slots__]
        demand(sum(terms) == snapshot.spread_bound, "terms add up", snapshot.bound)
        for tenant in snapshot.tenants:
            if tenant.backlogged and self.books.fair:
                self._check_lead(self.books.accounts[tenant.tenant], tenant)

    def _check_lead(self, account: Account, shown) -> None:
        """Within what is open below the floor, within Z, U and M above it."""
        lead = account.counter - self.books.floor
        dip = ceil(account.dip_raw, account.terms.weight_milli)
        demand(lead >= -dip, "a counter is not far below the floor", account.tenant, lead, dip)
        high = account.most_slack + account.most_jump + self.lag + ROUNDING
        if account.tenant in self.books.altered:
            high = shown.reach
        demand(lead <= high, "a counter is not far above the floor", account.tenant, lead, high)
