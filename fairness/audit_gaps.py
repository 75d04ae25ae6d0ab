"""How far apart two tenants drift in service while both are backlogged throughout, and its bound.

A stretch is a time in which one tenant is backlogged and nothing that its bound is made of changes:
not its terms, not the pool's capacity. For two tenants in a stretch the largest gap over all
intervals inside is the range of D = W_f/weight_f - W_g/weight_g since the later stretch began, for
an interval's gap is the difference of D at its ends. So a pair costs two numbers, and an event as
many steps as there are tenants watched. At most `WATCHED` are, those in a stretch the longest: an
event stays cheap with thousands waiting. All tenants are held to the one-sided bounds (`Book`).
"""

from dataclasses import dataclass, field

from fairness.audit_report import Gap
from fairness.types import TenantId

WATCHED = 32


@dataclass(slots=True)
class Stretch:
    """One tenant's; amounts are normalised. `served` is W/weight, rounded down.

    `top` is the most that it can rise above the smallest counter, `fall` the most that it can get
    back, both the largest they were in the stretch; `lag` is the largest M in it.
    """

    tenant: TenantId
    served: int
    top: int
    fall: int
    lag: int
    low: dict[TenantId, int] = field(default_factory=dict)
    high: dict[TenantId, int] = field(default_factory=dict)


class Gaps:
    """The stretches that run now; ranges are kept once a pair, with the smaller tenant id."""

    def __init__(self) -> None:
        self._watched: dict[TenantId, Stretch] = {}
        self._others: dict[TenantId, Stretch] = {}

    def begin(self, stretch: Stretch) -> None:
        """A stretch begins."""
        if len(self._watched) < WATCHED:
            self._watch(stretch)
        else:
            self._others[stretch.tenant] = stretch

    def end(self, tenant: TenantId) -> None:
        """A tenant's stretch is over, if one ran."""
        if self._others.pop(tenant, None) is not None or tenant not in self._watched:
            return
        del self._watched[tenant]
        for stretch in self._watched.values():
            stretch.low.pop(tenant, None)
            stretch.high.pop(tenant, None)
        if self._others:
            self._watch(self._others.pop(next(iter(self._others))))

    def of(self, tenant: TenantId) -> Stretch | None:
        """The tenant's stretch, while one runs."""
        return self._watched.get(tenant) or self._others.get(tenant)

    def lag_rose(self, lag: int) -> None:
        """M became larger than it was."""
        for stretches in (self._watched, self._others):
            for stretch in stretches.values():
                stretch.lag = max(stretch.lag, lag)

    def moved(self, tenant: TenantId, served: int) -> Gap:
        """The tenant's service changed; its worst gap up to now with any other, in either way."""
        stretch = self._watched.get(tenant)
        if stretch is None:
            if tenant in self._others:
                self._others[tenant].served = served
            return Gap()
        stretch.served = served
        worst = Gap()
        for other in self._watched.values():
            if other is not stretch:
                gap = self._gap(stretch, other)
                if gap.ratio > worst.ratio:
                    worst = gap
        return worst

    def _watch(self, stretch: Stretch) -> None:
        self._watched[stretch.tenant] = stretch
        for other in self._watched.values():
            if other is not stretch:
                first, second = _ordered(stretch, other)
                apart = first.served - second.served
                first.low[second.tenant] = first.high[second.tenant] = apart

    @staticmethod
    def _gap(stretch: Stretch, other: Stretch) -> Gap:
        first, second = _ordered(stretch, other)
        apart = first.served - second.served
        low = first.low[second.tenant] = min(first.low[second.tenant], apart)
        high = first.high[second.tenant] = max(first.high[second.tenant], apart)
        bound = stretch.top + stretch.fall + other.top + other.fall + max(stretch.lag, other.lag)
        # Each end is two numbers rounded down: the true range may be smaller by less than two.
        return Gap(max(0, high - low - 2), bound, other.tenant)


def _ordered(one: Stretch, other: Stretch) -> tuple[Stretch, Stretch]:
    return (one, other) if one.tenant < other.tenant else (other, one)
