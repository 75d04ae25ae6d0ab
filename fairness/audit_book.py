"""The audit's own account of a pool: requests, counters, floor and who is backlogged.

It is written from docs/fairness.md and shares no code with the dispatcher. Inputs change it
(`audit_inputs`), grants are taken as the log says them and checked (`audit_effects`). What must
follow from a change, such as a lift or a head's deadline, is `expected` in the log, in order.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from fairness.audit_accounts import UNIT, Replica, Request, Tenant
from fairness.audit_extremes import Largest, Least
from fairness.audit_gaps import Gaps, Stretch
from fairness.audit_limits import limits_of, norm
from fairness.events import Blocked, Effect, Expired, Headed, Lifted, Refused, Unblocked, Unpinned
from fairness.types import PoolConfig, ReplicaId, RequestId, TenantId, TenantTerms


class Watcher(Protocol):
    """Who keeps figures of what happens in a book."""

    def charged(self, tenant: Tenant, request: Request, milli: int) -> None:
        """A tenant was charged; a negative amount came back."""

    def turned(self, tenant: Tenant) -> None:
        """A tenant became backlogged, or is so no longer."""

    def waited(self, tenant: Tenant, request: Request, now: float) -> None:
        """A request waits no longer: it was granted, or ends."""


class Book:
    """The pool as the audit knows it.

    `changed` are the tenants that the input in hand touched, `clocks` the waiting requests whose
    deadline runs since. `rate` is the pool's as the log has it; `room` is what the urgent lane may
    spend, in thousandths of milli-units.
    """

    def __init__(self, config: PoolConfig, watcher: Watcher) -> None:
        self.config = config
        self.now = 0.0
        self.floor = 0
        self.credit = 0
        self.arrivals = 0
        self.requests: dict[RequestId, Request] = {}
        self.tenants: dict[TenantId, Tenant] = {}
        self.replicas: dict[ReplicaId, Replica] = {}
        self.pinned: Request | None = None
        self.pinned_to: ReplicaId | None = None
        self.room = 0
        self.expected: deque[Effect] = deque()
        self.changed: set[TenantId] = set()
        self.clocks: list[Request] = []
        self.rate = 0
        self.gaps = Gaps()
        self.refund_caps = Largest()
        self.largest = Largest()
        self.backlogged: dict[TenantId, Tenant] = {}
        self.weight = 0
        self.stake = 0
        self._watcher = watcher
        self._expiries: list[tuple[float, int, Request]] = []
        self._by_counter = Least(self._counter)
        self._by_settled = Least(self._settled)

    # --- what is known ------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """M: the most that the smallest backlogged counter can be above the floor."""
        return self.refund_caps.value

    def least(self) -> Tenant | None:
        """The backlogged tenant with the smallest counter."""
        name = self._by_counter.name
        return None if name is None else self.tenants[name]

    def spread(self) -> tuple[int, int]:
        """The largest less the smallest counter of the backlogged, and its bound; looks at all."""
        tenants = self.backlogged.values()
        if not tenants:
            return 0, 0
        counters = [tenant.counter for tenant in tenants]
        above = max(max(t.limits.top_norm + self.lag, t.highest) for t in tenants)
        below = max(max(t.refund_cap or 0, t.lowest) for t in tenants)
        return max(counters) - min(counters), above + below

    def head(self, tenant: Tenant) -> Request | None:
        """The tenant's first waiting request."""
        queue = tenant.queue
        while queue:
            place, request = queue[0]
            if request.queued and request.place == place:
                return request
            heappop(queue)
        return None

    def waiting(self, tenant: Tenant) -> list[Request]:
        """The tenant's waiting requests, in order."""
        return sorted(
            {r for place, r in tenant.queue if r.queued and r.place == place},
            key=lambda request: request.place,
        )

    def advance_floor(self) -> None:
        """V rises to the smallest settled counter of the backlogged."""
        name = self._by_settled.name
        if name is not None:
            self.floor = max(self.floor, self.tenants[name].settled)

    def due(self) -> Iterator[Request]:
        """Requests whose time to live is over while they wait or are pinned, in order."""
        while self._expiries and self._expiries[0][0] <= self.now:
            request = heappop(self._expiries)[2]
            known = self.requests.get(request.request) is request
            if known and (request.queued or request is self.pinned):
                yield request

    # --- changes ------------------------------------------------------------------------------

    def open(self, name: TenantId, terms: TenantTerms) -> Tenant:
        """The tenant's account; a new one starts at the floor."""
        tenant = self.tenants.get(name)
        if tenant is None:
            limits = limits_of(terms, self.credit, self.config)
            tenant = Tenant(name, terms, limits, raw=self.floor * terms.weight_milli)
            self.take_in(tenant)
        return tenant

    def take_in(self, tenant: Tenant) -> None:
        """An account that is not known yet."""
        self.tenants[tenant.tenant] = tenant
        self.largest.change(None, tenant.limits.largest)
        self.weigh(tenant)

    def forget(self, tenant: Tenant) -> None:
        """The account is gone."""
        del self.tenants[tenant.tenant]
        self.largest.change(tenant.limits.largest, None)
        self.refund_caps.change(tenant.refund_cap, None)

    def queue(self, request: Request) -> None:
        """The request waits, for the first time or again."""
        tenant = self.tenants[request.tenant]
        request.queued, request.replica = True, None
        tenant.num_queued += 1
        heappush(tenant.queue, (request.place, request))
        if request.deadline is not None:
            self.clocks.append(request)
        self.watch_expiry(request)

    def watch_expiry(self, request: Request) -> None:
        """The request is to expire if it waits, or is pinned, when its time to live is over."""
        expiry = request.enqueued_at + self.config.ttl_s
        heappush(self._expiries, (expiry, request.arrival, request))

    def unqueue(self, tenant: Tenant, request: Request) -> None:
        """The request waits no longer."""
        self._watcher.waited(tenant, request, self.now)
        request.queued = False
        tenant.num_queued -= 1

    def charge(self, tenant: Tenant, request: Request, milli: int) -> None:
        """Charge, or give back a negative amount."""
        tenant.raw += UNIT * milli
        tenant.service += milli
        self.room += self.config.urgent_share_milli * milli
        if request.lent is not None:
            request.spent += milli
        if milli:
            self._watcher.charged(tenant, request, milli)

    def open_output(self, request: Request) -> int:
        """What it may still be charged for output."""
        return self.config.prices.output * (request.output_limit - request.output)

    def take(self, tenant: Tenant, request: Request, excess: int) -> None:
        """The request is granted or pinned, its tenant `excess` above the smallest counter."""
        first = request.charged is None
        prompt = self.config.prices.uncached * request.prompt_tokens if first else 0
        self.unqueue(tenant, request)
        tenant.in_flight += request.sequences
        tenant.open_output += self.open_output(request)
        reach = norm(prompt + tenant.open_output, tenant.terms.weight_milli)
        tenant.above = (self.lag + excess + reach + 1) * tenant.terms.weight_milli
        if first:
            request.charged = prompt
            tenant.unsettled += prompt
            self.charge(tenant, request, prompt)
        self.weigh(tenant, excess + reach)

    def land(self, tenant: Tenant, request: Request) -> None:
        """The request is in flight, or pinned, no longer."""
        replica = self.replicas.get(request.replica or "")
        if replica is not None:
            replica.held.pop(request.request, None)
        if request is self.pinned:
            self.pinned = self.pinned_to = None
        request.replica = None
        tenant.in_flight -= request.sequences
        tenant.open_output -= self.open_output(request)
        if request.lent is not None:
            self.room += UNIT * (request.lent - request.spent)
            request.lent = None

    def wait_again(self, request: Request) -> None:
        """An unstarted request goes back to the front of its tenant's queue."""
        tenant = self.tenants[request.tenant]
        self.land(tenant, request)
        self.queue(request)
        self.look(tenant)

    def end(self, tenant: Tenant, request: Request) -> None:
        """The request is over."""
        tenant.unsettled -= request.refundable
        del self.requests[request.request]
        self.look(tenant)

    def withdraw(self, request: Request) -> None:
        """End a request that waits or is pinned; its charge comes back."""
        tenant = self.tenants[request.tenant]
        self.charge(tenant, request, -(request.charged or 0))
        if request.queued:
            self.unqueue(tenant, request)
        else:
            self.land(tenant, request)
        self.end(tenant, request)

    def expect_expired(self, request: Request) -> None:
        """`Expired` must be logged."""
        up = sum(replica.accepting for replica in self.replicas.values())
        self.withdraw(request)
        self.expected.append(Expired(self.now, request.request, request.tenant, up))

    def expect_refused(self, effect: Refused) -> None:
        """A waiting request that `effect` refuses ends here."""
        self.withdraw(self.requests[effect.request])
        self.expected.append(effect)

    def expect_unpinned(self) -> None:
        """The pinned request's replica can have it no more."""
        if self.pinned is not None:
            request = self.pinned
            self.expected.append(Unpinned(self.now, request.request, request.tenant))
            self.wait_again(request)

    def set_terms(self, tenant: Tenant, terms: TenantTerms) -> None:
        """New terms; how far the counter is above the floor, times the weight, stays."""
        self._count(tenant, -1)
        self.largest.change(tenant.limits.largest, None)
        tenant.raw += self.floor * (terms.weight_milli - tenant.terms.weight_milli)
        tenant.terms = terms
        tenant.limits = limits_of(terms, self.credit, self.config)
        self.largest.change(None, tenant.limits.largest)
        self._count(tenant, 1)
        self.weigh(tenant)
        self._offer(tenant)
        if tenant.backlogged:
            self._begin_stretch(tenant)

    def set_credit(self) -> None:
        """Replicas changed: so does what every tenant can have in flight."""
        credit = sum(
            replica.capacity.slots + self.config.lookahead for replica in self.replicas.values()
        )
        if credit != self.credit:
            self.credit = credit
            for tenant in self.tenants.values():
                self.set_terms(tenant, tenant.terms)

    # --- who is backlogged --------------------------------------------------------------------

    def look(self, tenant: Tenant) -> None:
        """After any change of a tenant: is it idle, blocked or backlogged, and what follows."""
        self.changed.add(tenant.tenant)
        if tenant.refund_cap != tenant.limits.refund_norm:
            self.weigh(tenant)
        head = self.head(tenant)
        if head is None:
            self._stop(tenant)
            tenant.blocked = False
        elif tenant.in_flight + head.sequences > tenant.terms.concurrency:
            self._stop(tenant)
            self._block(tenant, head)
        else:
            self._offer(tenant)
            if not tenant.backlogged:
                self._start(tenant)
            if head.deadline is None:
                self._start_clock(tenant, head)

    def _block(self, tenant: Tenant, head: Request) -> None:
        if tenant.blocked:
            return
        tenant.blocked = True
        self.expected.append(Blocked(self.now, tenant.tenant))
        if head.deadline is not None:
            head.left_s = max(0.0, head.deadline - self.now)
            head.deadline = None

    def _start(self, tenant: Tenant) -> None:
        if tenant.blocked:
            tenant.blocked = False
            self.expected.append(Unblocked(self.now, tenant.tenant))
        level = self.floor * tenant.terms.weight_milli
        if tenant.raw < level:
            tenant.raw = level
            self.expected.append(Lifted(self.now, tenant.tenant, tenant.counter))
        tenant.below = UNIT * tenant.unsettled
        self.mark_backlogged(tenant)

    def mark_backlogged(self, tenant: Tenant) -> None:
        """The tenant is backlogged from here on."""
        tenant.backlogged = True
        self.backlogged[tenant.tenant] = tenant
        self._count(tenant, 1)
        self._offer(tenant)
        self._watcher.turned(tenant)
        self._begin_stretch(tenant)

    def _stop(self, tenant: Tenant) -> None:
        if tenant.backlogged:
            self._count(tenant, -1)
            tenant.backlogged = False
            del self.backlogged[tenant.tenant]
            self.gaps.end(tenant.tenant)
            self._watcher.turned(tenant)

    def _start_clock(self, tenant: Tenant, head: Request) -> None:
        work, rate = 0, 0
        if head.left_s is not None:
            head.deadline = self.now + head.left_s
        else:
            work, rate, config = self._work_before(tenant), self.rate, self.config
            head.allowed_s = config.t_max_s
            if rate:
                head.allowed_s = min(config.t_max_s, max(config.t_min_s, work / rate))
            head.deadline = self.now + head.allowed_s
        self.clocks.append(head)
        self.expected.append(Headed(self.now, head.request, head.tenant, head.deadline, work, rate))

    def _work_before(self, tenant: Tenant) -> int:
        own = tenant.limits
        others = self.weight - tenant.terms.weight_milli
        ahead = -(-others * (norm(own.stake, own.weight) + self.lag) // UNIT)
        return own.output + own.refund + ahead + self.stake - own.stake

    # --- sums and bounds ----------------------------------------------------------------------

    def _count(self, tenant: Tenant, sign: int) -> None:
        if tenant.backlogged:
            self.weight += sign * tenant.terms.weight_milli
            self.stake += sign * tenant.limits.stake

    def weigh(self, tenant: Tenant, reach: int = 0) -> None:
        """Count the tenant's part in the bounds again; `reach` is what a grant just left open."""
        before = self.lag
        cap = norm(max(tenant.limits.refund, tenant.unsettled), tenant.terms.weight_milli)
        self.refund_caps.change(tenant.refund_cap, cap)
        tenant.refund_cap = cap
        if self.lag > before:
            self.gaps.lag_rose(self.lag)
        stretch = self.gaps.of(tenant.tenant)
        if stretch is not None:
            stretch.top = max(stretch.top, reach)
            stretch.fall = max(stretch.fall, cap)

    def _begin_stretch(self, tenant: Tenant) -> None:
        self.gaps.end(tenant.tenant)
        still_open = norm(tenant.open_output, tenant.terms.weight_milli)
        top = max(tenant.limits.top_norm, tenant.highest - self.lag, still_open)
        fall = max(tenant.refund_cap or 0, tenant.lowest)
        self.gaps.begin(Stretch(tenant.tenant, tenant.served, top, fall, self.lag))

    def _offer(self, tenant: Tenant) -> None:
        self._by_counter.offer(tenant.tenant)
        self._by_settled.offer(tenant.tenant)

    def _counter(self, name: TenantId) -> int | None:
        tenant = self.tenants.get(name)
        return tenant.counter if tenant is not None and tenant.backlogged else None

    def _settled(self, name: TenantId) -> int | None:
        tenant = self.tenants.get(name)
        return tenant.settled if tenant is not None and tenant.backlogged else None
