"""Watches a dispatcher and fails on a broken promise.

`Watch` applies events, keeps its own books of them and of the effects (`books.py`), and holds every
effect against the promises (`promises/`). It knows prices, limits and the contract's rules, and
keeps none of the dispatcher's indexes; what the dispatcher shows of itself must agree with it.
"""

from collections import defaultdict

from fairness import events
from fairness.dispatcher import Dispatcher
from fairness.policy import Policy, VtcPolicy
from fairness.types import PoolConfig
from tests.fairness.books import Books
from tests.fairness.outside import (
    BACKLOGGED,
    BLOCKED,
    LOST,
    Account,
    BrokenPromiseError,
    Seen,
    ceil,
    demand,
)
from tests.fairness.promises.bounds import Bounds
from tests.fairness.promises.turns import Turns
from tests.fairness.promises.waits import Waits

__all__ = ["LOST", "BrokenPromiseError", "Watch"]


class Watch:
    """Applies events to a dispatcher and checks it after each.

    With `promises_bound` false the policy is first come, first served: it is held to the same books
    and rules of order, and how far it exceeds the bounds is only noted in `ratios`. What the
    dispatcher shows of itself is compared after every `every` events.
    """

    def __init__(
        self,
        config: PoolConfig | None = None,
        policy: Policy | None = None,
        *,
        promises_bound: bool = True,
        every: int = 1,
    ) -> None:
        self.config = config = config or PoolConfig()
        self.dispatcher = Dispatcher(config, policy or VtcPolicy())
        self.books = Books(config, fair=promises_bound)
        self.ratios: dict[str, float] = defaultdict(float)
        self.turns = Turns(self.books, self.ratios)
        self.waits = Waits(self.books, self.turns, self.ratios)
        self.bounds = Bounds(self.books, self.ratios)
        self.every = every
        self.applied = 0
        self.snapshot = self.dispatcher.snapshot()
        self._see = {
            events.Passed: self.turns.see_pass,
            events.Granted: self.turns.see_grant,
            events.Pinned: self.turns.see_pin,
            events.Dispatched: self.turns.see_dispatch,
        }

    # --- what happens ---

    def apply(self, event: events.Input) -> tuple[events.Effect, ...]:
        effects = self.dispatcher.apply(event)
        books = self.books
        books.begin(event.now, effects)
        for effect in effects:  # what waited too long goes before the event is taken
            if type(effect) is events.Expired:
                self.waits.see_expired(effect)
        self.waits.check_ttl()
        books.take(event)
        for effect in effects:
            see = self._see.get(type(effect))
            if see is not None:
                see(effect)
            demand(effect.now == event.now, "an effect tells when", effect)
        self.turns.see_stop()
        self.waits.check()
        for effect in effects:
            if type(effect) is events.Forgotten:
                books.forget(effect)
        books.finish()
        self.bounds.check()
        self.applied += 1
        if self.applied % self.every == 0:
            self.look()
        return effects

    def look(self) -> None:
        """Compare what the dispatcher shows of itself with the books."""
        self.snapshot = self.dispatcher.snapshot()
        self.bounds.check_live(self.snapshot)
        self._check_pool()
        self._check_tenants()

    def __getattr__(self, name: str):
        """`watch.enqueued(request=...)` applies `Enqueued(now=..., request=...)`."""
        kind = getattr(events, "".join(part.title() for part in name.split("_")), None)
        if kind is None:
            raise AttributeError(name)

        def send(*args, after: float = 0.0, **fields):
            return self.apply(kind(self.now + after, *args, **fields))

        return send

    def _check_pool(self) -> None:
        shown, books = self.snapshot, self.books
        pinned = None if books.pinned is None else books.pinned.spec.request
        agree = {
            "the floor is the largest settled minimum": (shown.floor, books.floor),
            "the pinned request is shown": (shown.pinned, pinned),
            "all service is what was charged": (shown.service_milli, books.service),
            "urgent service is what was charged": (shown.urgent_milli, books.urgent),
            "urgent grants are counted": (shown.urgent_grants, self.turns.urgent_grants),
            "a stop for want of KV is shown": (shown.stopped_at, self.turns.stopped_at),
            "stops for want of KV are counted": (shown.misfits, self.turns.misfits),
            "passes are counted": (shown.overtakes_max, self.turns.most_passes),
            "misses are counted": (
                {reason: count for reason, count in shown.missed.items() if count},
                {reason: count for reason, count in self.waits.missed.items() if count},
            ),
            "a replica's load is what was sent there": (
                {r.replica: (r.accepting, r.in_flight, r.num_blocks) for r in shown.replicas},
                {r.name: (r.accepting, r.in_flight, r.blocks) for r in books.replicas.values()},
            ),
        }
        for claim, (theirs, ours) in agree.items():
            demand(theirs == ours, claim, theirs, ours)

    def _check_tenants(self) -> None:
        demand(
            {t.tenant for t in self.snapshot.tenants} == set(self.books.accounts),
            "every tenant with something open is known",
        )
        for tenant in self.snapshot.tenants:
            account = self.books.accounts[tenant.tenant]
            head = account.head
            agree = {
                "service is what was charged": (tenant.service_milli, account.service),
                "a counter is what was charged by weight": (tenant.counter, account.counter),
                "what can be given back": (tenant.unsettled_milli, account.unsettled),
                "the queue": (tenant.queued, len(account.waiting)),
                "sequences in flight": (tenant.in_flight, account.in_flight),
                "who is backlogged": (tenant.backlogged, account.state == BACKLOGGED),
                "who is blocked": (tenant.blocked, account.state == BLOCKED),
                "the slack": (tenant.slack, account.norm_slack),
                "the largest request": (tenant.largest_milli, account.largest),
                "a deadline stands": (tenant.head_deadline, head.deadline if head else None),
            }
            for claim, (theirs, ours) in agree.items():
                demand(theirs == ours, claim, tenant.tenant, theirs, ours)
            homeless = head is not None and self.books.homeless(head)
            demand(not homeless, "what no replica can ever hold does not wait", tenant.tenant)

    # --- what tests ask ---

    @property
    def now(self) -> float:
        return self.books.now

    @property
    def live(self) -> dict[str, Seen]:
        return self.books.live

    @property
    def grants(self) -> int:
        return self.turns.grants

    @property
    def service(self) -> dict[str, int]:
        return {name: account.service for name, account in self.books.accounts.items()}

    def tenant(self, name: str):
        """The tenant's line of the last snapshot."""
        return next(t for t in self.snapshot.tenants if t.tenant == name)

    def account(self, name: str) -> Account:
        """The tenant's own books."""
        return self.books.accounts[name]

    def gap(self, f: str, g: str) -> int:
        """How far f's counter is ahead of g's."""
        return self.tenant(f).counter - self.tenant(g).counter

    def slack_now(self, f: str) -> int:
        """Z of f under its present terms."""
        terms, prices = self.books.terms[f], self.config.prices
        largest = prices.uncached * terms.max_prompt_tokens
        largest += prices.output * terms.max_output_tokens
        return ceil(1000 * (self.config.slack_milli * largest // 1000), terms.weight_milli)

    def jump_now(self, f: str) -> int:
        """U/weight of f under its present terms, with look-ahead counted."""
        terms, prices = self.books.terms[f], self.config.prices
        cost = prices.uncached * terms.max_prompt_tokens
        cost += prices.output * self._n(f) * terms.max_output_tokens
        return ceil(1000 * cost, terms.weight_milli)

    def refund_now(self, g: str) -> int:
        """The cap on A/weight of g under its present terms."""
        terms = self.books.terms[g]
        cost = self.config.prices.uncached * self._n(g) * terms.max_prompt_tokens
        return ceil(1000 * cost, terms.weight_milli)

    def _n(self, tenant: str) -> int:
        return min(self.books.credit, self.books.terms[tenant].concurrency)
