"""Watches a dispatcher and fails on a broken promise; knows prices and limits, no algorithm.

Its own books come from events, grants and lifts alone; bounds are taken from the limits that were
in force, never from the dispatcher. What it cannot know (the floor) it does not use.
"""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations

from fairness import events
from fairness.dispatcher import Dispatcher
from fairness.policy import Policy, VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms

LOST = "(lost)"
FLYING_ONLY = (
    events.Corrected,
    events.Emitted,
    events.Finished,
    events.NotStarted,
    events.Requeued,
)


class BrokenPromiseError(AssertionError):
    """The dispatcher did what docs/fairness.md says it does not do."""


def demand(holds, claim, *figures) -> None:
    if not holds:
        raise BrokenPromiseError(claim, *figures)


@dataclass
class Seen:
    """A request as the outside sees it."""

    spec: events.Enqueued
    granted_under: TenantTerms | None = None
    replica: str | None = None
    charged: int = 0
    granted: bool = False
    known: bool = False
    prompt: int = 0
    out: int = 0


class Watch:
    """Applies events to a dispatcher and checks it after each."""

    def __init__(
        self,
        config: PoolConfig | None = None,
        policy: Policy | None = None,
        *,
        promises_bound: bool = True,
    ) -> None:
        self.config = config = config or PoolConfig()
        self.promises_bound = promises_bound
        self.dispatcher = Dispatcher(config, policy or VtcPolicy())
        self.live: dict[str, Seen] = {}
        self.terms: dict[str, TenantTerms] = {}
        self.service: dict[str, int] = defaultdict(int)
        self.replicas: dict[str, ReplicaCapacity] = {}
        self.refund: dict[str, Fraction] = defaultdict(Fraction)
        self.jump: dict[str, Fraction] = defaultdict(Fraction)
        self.most_refund = Fraction(0)
        self.altered: set[str] = set()
        self.ranges: dict[tuple[str, str], tuple[Fraction, Fraction]] = {}
        self.grants = 0
        self.worst = 0.0
        self.now = 0.0
        self.snapshot = self.dispatcher.snapshot()

    # --- what happens ---

    def apply(self, event: events.Input) -> tuple[events.Effect, ...]:
        self.now = event.now
        effects = self.dispatcher.apply(event)
        # Waiting requests expire before the event is taken.
        expired = [e for e in effects if isinstance(e, events.Expired)]
        for effect in expired:
            self._drop(effect.request)
        self._take(event)
        for effect in effects:
            self._see(effect)
        self._note_limits()
        self.snapshot = self.dispatcher.snapshot()
        self.check()
        return effects

    def __getattr__(self, name: str):
        """`watch.enqueued(request=...)` applies `Enqueued(now=..., request=...)`."""
        kind = getattr(events, "".join(part.title() for part in name.split("_")), None)
        if kind is None:
            raise AttributeError(name)

        def send(*args, after: float = 0.0, **fields):
            return self.apply(kind(self.now + after, *args, **fields))

        return send

    def _take(self, event: events.Input) -> None:
        handler = getattr(self, f"_on_{type(event).__name__.lower()}", None)
        if handler is None:
            return
        seen = self.live.get(getattr(event, "request", ""))
        if isinstance(event, FLYING_ONLY):
            if seen is not None and seen.replica is not None:
                handler(seen, event)
        else:
            handler(event)

    def _on_enqueued(self, event) -> None:
        if event.request not in self.live:
            self.live[event.request] = Seen(event, prompt=event.prompt_tokens)
            self._set_terms(event.tenant, event.terms)

    def _on_cancelled(self, event) -> None:
        seen = self.live.get(event.request)
        if seen is not None and seen.replica is None:
            self._drop(event.request)

    def _on_tenantchanged(self, event) -> None:
        if event.tenant in self.terms:
            self._set_terms(event.tenant, event.terms)

    def _on_replicaup(self, event) -> None:
        self.replicas[event.replica] = event.capacity

    def _on_replicalost(self, event) -> None:
        if self.replicas.pop(event.replica, None):
            for seen in self.live.values():
                if seen.replica == event.replica:
                    seen.replica = LOST if seen.out else None

    def _on_emitted(self, seen, event) -> None:
        cap = seen.spec.sequences * seen.spec.max_output_tokens
        new = max(0, min(event.output_tokens, cap) - seen.out)
        self._charge(seen, self.config.prices.output * new)
        seen.out += new

    def _on_finished(self, seen, event) -> None:
        self._on_emitted(seen, event)
        del self.live[event.request]

    def _on_notstarted(self, seen, event) -> None:
        if not seen.out:
            self._charge(seen, -seen.charged)
        del self.live[event.request]

    def _on_requeued(self, seen, event) -> None:
        if not seen.out:
            seen.replica = None

    def _on_corrected(self, seen, event) -> None:
        tokens = min(event.prompt_tokens, seen.spec.prompt_tokens)
        hits = min(event.cached_tokens, tokens)
        prices = self.config.prices
        price = prices.uncached * (tokens - hits) + prices.cached * hits
        if not (seen.known and seen.out):
            output = prices.output * seen.out
            self._charge(seen, min(0, price - (seen.charged - output)))
        seen.known, seen.prompt = True, event.prompt_tokens

    def _see(self, effect: events.Effect) -> None:
        match effect:
            case events.Granted():
                seen = self.live[effect.request]
                demand(seen.replica is None, "a request is granted once at a time", effect)
                due = 0 if seen.granted else self.config.prices.uncached * seen.spec.prompt_tokens
                demand(effect.charge_milli == due, "the prompt is charged once, at grant", effect)
                self._charge(seen, due)
                seen.granted, seen.replica = True, effect.replica
                seen.granted_under = self.terms[effect.tenant]
                self.grants += 1
                mine = [s for s in self.live.values() if s.spec.tenant == effect.tenant]
                self._settle_terms(effect.tenant, [s for s in mine if s.granted])
                held = sum(s.spec.sequences for s in mine if s.replica is not None)
                demand(
                    held <= self.terms[effect.tenant].concurrency, "concurrency holds", effect, held
                )
                self._fits(effect.replica)
            case events.Refused():
                self._drop(effect.request)
            case events.Forgotten():
                demand(
                    self.service.pop(effect.tenant, 0) == effect.service_milli,
                    "service is what was charged",
                    effect,
                )
            case _:
                pass

    def _drop(self, request: str) -> None:
        seen = self.live.pop(request)
        if seen.granted:
            self._charge(seen, -seen.charged)

    def _fits(self, replica: str) -> None:
        here = [s for s in self.live.values() if s.replica == replica]
        capacity = self.replicas[replica]
        held = sum(s.spec.sequences for s in here)
        demand(held <= capacity.slots + self.config.lookahead, "a grant finds a slot", replica)
        tokens = sum(s.spec.sequences * s.prompt + s.out for s in here)
        demand(tokens <= capacity.kv_tokens, "a grant finds KV tokens", replica, tokens)

    def _set_terms(self, tenant: str, terms: TenantTerms) -> None:
        if self.terms.get(tenant, terms) != terms:
            self.altered.add(tenant)
        self.terms[tenant] = terms

    def _settle_terms(self, tenant: str, granted: list[Seen]) -> None:
        """A change of terms is past once a grant finds nothing open from before it."""
        now = {self.terms[tenant]}
        if all({s.granted_under, s.spec.terms} == now for s in granted):
            self.altered.discard(tenant)

    def _charge(self, seen: Seen, milli: int) -> None:
        seen.charged += milli
        self.service[seen.spec.tenant] += milli

    # --- what tests ask ---

    def tenant(self, name: str):
        """The tenant's line of the last snapshot."""
        return next(t for t in self.snapshot.tenants if t.tenant == name)

    def gap(self, f: str, g: str) -> int:
        """How far f's counter is ahead of g's."""
        return self.tenant(f).counter - self.tenant(g).counter

    def jump_now(self, f: str) -> int:
        """U/weight of f under its present terms, with look-ahead counted."""
        terms, prices = self.terms[f], self.config.prices
        cost = prices.uncached * terms.max_prompt_tokens
        cost += prices.output * self._n(f) * terms.max_output_tokens
        return -(-1000 * cost // terms.weight_milli)

    def refund_now(self, g: str) -> int:
        """The cap on A/weight of g under its present terms."""
        terms = self.terms[g]
        cost = self.config.prices.uncached * self._n(g) * terms.max_prompt_tokens
        return -(-1000 * cost // terms.weight_milli)

    def _n(self, tenant: str) -> int:
        credit = sum(r.slots + self.config.lookahead for r in self.replicas.values())
        return min(credit, self.terms[tenant].concurrency)

    # --- what must hold ---

    def _note_limits(self) -> None:
        """U/weight, A/weight and M are the largest that the limits in force have allowed."""
        credit = sum(r.slots + self.config.lookahead for r in self.replicas.values())
        prices = self.config.prices
        for tenant, terms in self.terms.items():
            n = min(credit, terms.concurrency)
            refund = Fraction(1000 * prices.uncached * n * terms.max_prompt_tokens)
            jump = 1000 * (
                prices.uncached * terms.max_prompt_tokens
                + prices.output * n * terms.max_output_tokens
            )
            self.refund[tenant] = max(self.refund[tenant], refund / terms.weight_milli)
            self.jump[tenant] = max(self.jump[tenant], Fraction(jump, terms.weight_milli))
        open_now = [self._open_refund(tenant) for tenant in self.altered]
        self.most_refund = max([self.most_refund, *self.refund.values(), *open_now])

    def _open_refund(self, tenant: str) -> Fraction:
        """A/weight: what older limits let in may be more than today's allow."""
        mine = [s for s in self.live.values() if s.spec.tenant == tenant and s.granted]
        milli = sum(
            s.charged - self.config.prices.output * s.out for s in mine if not (s.known and s.out)
        )
        return Fraction(1000 * milli, self.terms[tenant].weight_milli)

    def check(self) -> None:
        snapshot = self.snapshot
        if self.promises_bound:
            demand(snapshot.spread <= snapshot.spread_bound, "spread is within bound", snapshot)
            self._check_pairs()
            self._check_floor()
        if snapshot.spread_bound:
            self.worst = max(self.worst, snapshot.spread / snapshot.spread_bound)
        demand(sum(vars_of(snapshot.bound)) == snapshot.spread_bound, "terms add up")
        for tenant in snapshot.tenants:
            demand(
                tenant.in_flight >= 0 and tenant.queued >= 0 and tenant.unsettled_milli >= 0,
                "nothing in flight is negative",
                tenant,
            )
            demand(
                tenant.service_milli == self.service[tenant.tenant],
                "service is what was charged",
                tenant,
                self.service[tenant.tenant],
            )
        self._check_work_conserved()

    def _check_floor(self) -> None:
        """Backlogged counters stay near V: within what is open below, within U and M above."""
        for tenant in self.snapshot.tenants:
            name, lead = tenant.tenant, tenant.counter - self.snapshot.floor
            if tenant.backlogged:
                demand(lead >= -tenant.dip, "a counter is not far below the floor", tenant)
                high = self.jump[name] + self.most_refund + 2
                if name in self.altered:
                    high = tenant.reach
                demand(lead <= high, "a counter is not far above the floor", tenant, high)

    def _check_pairs(self) -> None:
        backlogged = {t.tenant: t for t in self.snapshot.tenants if t.backlogged}
        calm = {name for name in backlogged if name not in self.altered}
        self.ranges = {pair: r for pair, r in self.ranges.items() if set(pair) <= calm}
        for f, g in permutations(sorted(calm), 2):
            # Two units for the roundings of c and of the terms.
            gap = backlogged[f].counter - backlogged[g].counter
            limit = self.jump[f] + self.refund[g] + self.most_refund + 2
            demand(gap <= limit, "c_f - c_g <= U_f + A_g + M", f, g, gap, limit)
            if f < g:
                self._check_interval(f, g)

    def _check_interval(self, f: str, g: str) -> None:
        """The range of W_f/w - W_g/w since both are backlogged bounds it over every interval."""
        gap = self._normal(f) - self._normal(g)
        low, high = self.ranges.get((f, g), (gap, gap))
        self.ranges[f, g] = low, high = min(low, gap), max(high, gap)
        limit = sum(self.jump[t] + self.refund[t] for t in (f, g)) + self.most_refund + 2
        demand(high - low <= limit, "|W_f - W_g| over an interval", f, g, high - low, limit)

    def _normal(self, tenant: str) -> Fraction:
        return Fraction(1000 * self.service[tenant], self.terms[tenant].weight_milli)

    def _check_work_conserved(self) -> None:
        """An accepting, empty replica and a backlogged tenant do not stand side by side."""
        idle = [r for r in self.snapshot.replicas if r.accepting and not r.in_flight]
        waits = [t for t in self.snapshot.tenants if t.backlogged]
        if idle and waits:
            demand(self.snapshot.stopped_at is not None, "an idle replica and a waiter", waits)


def vars_of(value) -> list[int]:
    return [getattr(value, name) for name in value.__slots__]
