"""Keeps the audit's figures: per window of time, of every tenant and of the pool."""

from fairness.audit_accounts import UNIT, Request, Tenant
from fairness.audit_book import Book
from fairness.audit_report import Gap, HeadAge, Report, TenantTally, Window
from fairness.events import Effect, Expired, Granted, Missed, Passed, Pinned, Refused
from fairness.types import GrantReason, PassReason, TenantId


class Tallies:
    """Figures as time goes on, in seconds since 1970; only windows within `span` are kept.

    Windows are `window_s` long and begin at multiples of it; None is one window for all.
    """

    def __init__(
        self, report: Report, span: tuple[float | None, float | None], window_s: float | None
    ) -> None:
        self._report = report
        self._begin, self._end = span
        self._window_s = window_s
        self._window: Window | None = None
        self._now = 0.0
        self._backlogged: dict[TenantId, float] = {}
        self._until_spread = 0

    @property
    def inside(self) -> bool:
        """Whether the present is within the span."""
        return self._kept(self._now)

    def at(self, wall: float) -> None:
        """Time comes to `wall`."""
        wall = max(wall, self._now)
        if self._window is None:
            self._window = Window(wall, self._boundary(wall))
        while wall >= self._window.end:
            end = self._window.end
            self._close(end)
            start = end if self._backlogged else max(end, self._boundary_before(wall))
            self._window = Window(start, self._boundary(start))
        self._now = wall
        self._window.inputs += 1

    def finish(self) -> None:
        """The log is over."""
        if self._window is not None:
            self._close(self._now)
            self._window = None

    def restart(self) -> None:
        """The book begins anew: nobody is known to be backlogged."""
        if self._window is not None:
            for name in tuple(self._backlogged):
                self._leave(name, self._now)

    # --- what the book says -------------------------------------------------------------------

    def charged(self, tenant: Tenant, request: Request, milli: int) -> None:
        """A tenant was charged; a negative amount came back."""
        tally, window = self._of(tenant), self._current()
        tally.service += milli
        tally.service_norm += UNIT * milli / tenant.terms.weight_milli
        tally.refunds += max(0, -milli)
        window.service += milli
        if request.lent is not None:
            tally.urgent += milli
            window.urgent += milli

    def turned(self, tenant: Tenant) -> None:
        """A tenant became backlogged, or is so no longer."""
        if tenant.backlogged:
            self._backlogged[tenant.tenant] = self._now
            self._of(tenant).intervals += 1
        else:
            self._leave(tenant.tenant, self._now)

    def waited(self, tenant: Tenant, request: Request, now: float) -> None:
        """How long a request, if it was head, has waited by `now`, on the log's own clock."""
        left = request.left_s if request.deadline is None else request.deadline - now
        if request.allowed_s is None or left is None:
            return
        age = HeadAge(request.allowed_s - left, request.allowed_s, request.request)
        tally = self._of(tenant)
        if age.ratio >= tally.worst_head.ratio:
            tally.worst_head = age

    def noted(self, effect: Effect, book: Book) -> None:
        """An effect was taken into the book."""
        name = getattr(effect, "tenant", None)
        tenant = book.tenants.get(name or "")
        if tenant is None:
            return
        tally = self._of(tenant)
        match effect:
            case Granted(reason=reason):
                tally.grants += 1
                tally.urgent_grants += reason is GrantReason.URGENT
            case Pinned():
                tally.grants += 1
            case Passed(reason=PassReason.MISFIT, passes=passes):
                tally.passes = max(tally.passes, passes)
            case Passed(passes=passes):
                tally.overtakes = max(tally.overtakes, passes)
            case Missed(reason=reason):
                tally.missed[reason] = tally.missed.get(reason, 0) + 1
            case Expired():
                tally.expired += 1
            case Refused():
                tally.refused += 1
            case _:
                pass

    def gap(self, tenant: Tenant, gap: Gap) -> None:
        """The worst gap that a tenant is in now."""
        tally = self._of(tenant)
        if gap.ratio > tally.worst_gap.ratio:
            tally.worst_gap = gap

    def spread(self, book: Book) -> None:
        """Look at the spread now and then: so often that it costs a step for every event."""
        self._until_spread -= 1
        if self._until_spread > 0:
            return
        self._until_spread = len(book.backlogged)
        self._current().note_spread(*book.spread())

    # --- windows ------------------------------------------------------------------------------

    def _current(self) -> Window:
        if self._window is None:
            raise AssertionError("no time has been told yet")
        return self._window

    def _of(self, tenant: Tenant) -> TenantTally:
        tallies = self._current().tenants
        tally = tallies.get(tenant.tenant)
        if tally is None:
            tally = tallies[tenant.tenant] = TenantTally()
        tally.weight_milli = tenant.terms.weight_milli
        return tally

    def _leave(self, name: TenantId, wall: float) -> None:
        since = self._backlogged.pop(name, None)
        if since is not None:
            tally = self._current().tenants.setdefault(name, TenantTally())
            tally.backlogged_s += wall - since

    def _close(self, end: float) -> None:
        window = self._current()
        for name, since in self._backlogged.items():
            tally = window.tenants.setdefault(name, TenantTally())
            tally.backlogged_s += end - since
            self._backlogged[name] = end
        window.end = end
        if self._kept(window.start) and (window.inputs or window.tenants):
            self._report.windows.append(window)

    def _kept(self, wall: float) -> bool:
        after = self._begin is None or wall >= self._begin
        return after and (self._end is None or wall < self._end)

    def _boundary(self, wall: float) -> float:
        """The first moment after `wall` at which a window ends."""
        ends = [one for one in (self._begin, self._end) if one is not None and one > wall]
        if self._window_s is not None:
            ends.append((wall // self._window_s + 1) * self._window_s)
        return min(ends, default=float("inf"))

    def _boundary_before(self, wall: float) -> float:
        return wall if self._window_s is None else wall // self._window_s * self._window_s
