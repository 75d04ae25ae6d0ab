"""The dispatcher's twin: nothing is cached, every sum is taken again, counters are fractions.

Written from docs/fairness.md, not from the dispatcher. It shares only the event values.
"""

from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from math import ceil, floor

from fairness import events
from fairness.types import PoolConfig, RefusalReason, TenantTerms


@dataclass
class Work:
    """One request; `where` is "waiting" or a replica."""

    spec: events.Enqueued
    order: int
    since: float
    where: str = "waiting"
    lost: bool = False
    paid: int | None = None
    known: bool = False
    prompt: int = 0
    out: int = 0

    @property
    def cap(self) -> int:
        return self.spec.sequences * self.spec.max_output_tokens

    @property
    def open(self) -> int:
        return 0 if self.paid is None or (self.known and self.out) else self.paid

    def blocks(self, size: int) -> int:
        n = self.spec.sequences
        return n * ceil(Fraction(self.prompt + ceil(Fraction(self.out, n)) + 1, size))


@dataclass
class Books:
    terms: TenantTerms
    c: Fraction
    service: int = 0
    joined: bool = False
    extra: int = 0

    @property
    def phi(self) -> Fraction:
        return Fraction(self.terms.weight_milli, 1000)

    def charge(self, amount: int) -> None:
        self.c += Fraction(amount) / self.phi
        self.service += amount


class NaivePool:
    def __init__(self, config: PoolConfig, *, fair: bool = True) -> None:
        self.config = config
        self.fair = fair
        self.work: dict[str, Work] = {}
        self.books: dict[str, Books] = {}
        self.replicas: dict[str, list] = {}
        self.floor = 0
        self.orders = 0
        self.out: list = []
        self.now = 0.0

    # --- derived, always from scratch ---

    def waiting(self, tenant=None) -> list[Work]:
        rows = [w for w in self.work.values() if w.where == "waiting"]
        rows = [w for w in rows if tenant in {None, w.spec.tenant}]
        return sorted(rows, key=lambda w: w.order)

    def flying(self, tenant=None) -> list[Work]:
        rows = [w for w in self.work.values() if w.where != "waiting"]
        return [w for w in rows if tenant in {None, w.spec.tenant}]

    def sequences(self, rows) -> int:
        return sum(w.spec.sequences for w in rows)

    def unsettled(self, tenant) -> int:
        return sum(w.open for w in self.work.values() if w.spec.tenant == tenant)

    def s(self, tenant) -> Fraction:
        books = self.books[tenant]
        return books.c - Fraction(self.unsettled(tenant)) / books.phi

    def backlogged(self, tenant) -> bool:
        queue = self.waiting(tenant)
        if not queue:
            return False
        held = self.sequences(self.flying(tenant)) + queue[0].spec.sequences
        return held <= self.books[tenant].terms.concurrency

    def contenders(self) -> list[str]:
        return sorted(t for t in self.books if self.backlogged(t))

    def on(self, replica) -> list[Work]:
        return [w for w in self.flying() if w.where == replica and not w.lost]

    def room(self, replica, w: Work, *, empty: bool = False) -> bool:
        capacity, accepting = self.replicas[replica]
        held = [] if empty else self.on(replica)
        if not accepting:
            return False
        sequences = self.sequences(held) + w.spec.sequences
        blocks = sum(h.blocks(capacity.block_size) for h in held) + w.blocks(capacity.block_size)
        if held:
            blocks += self.config.growth_blocks * sequences
        return (
            sequences <= capacity.slots + self.config.lookahead
            and blocks <= capacity.kv_tokens // capacity.block_size
        )

    def place(self, w: Work):
        up = [r for r in self.replicas if self.replicas[r][1]]
        fitting = sorted(r for r in up if self.room(r, w))
        if not fitting:
            return None
        load = {r: self.sequences(self.on(r)) for r in up}
        if w.spec.affinity:
            mean = Fraction(sum(load.values()), len(up))
            liked = max(up, key=lambda r: _hash(w.spec.affinity, r))
            if liked in fitting and load[liked] <= ceil(
                mean * Fraction(self.config.load_factor_milli, 1000)
            ):
                return liked
        return min(fitting, key=lambda r: (load[r], r))

    # --- the fold ---

    def apply(self, event) -> tuple:
        self.out, self.now = [], event.now
        for w in sorted(self.waiting(), key=lambda w: (w.since + self.config.ttl_s, w.order)):
            if w.since + self.config.ttl_s <= self.now:
                up = sum(accepting for _, accepting in self.replicas.values())
                self.withdraw(w)
                self.out.append(events.Expired(self.now, w.spec.request, w.spec.tenant, up))
        getattr(self, "on_" + type(event).__name__.lower())(event)
        self.grant()
        for tenant in sorted(self.books, key=lambda t: (floor(self.books[t].c), t)):
            idle = not any(w.spec.tenant == tenant for w in self.work.values())
            if idle and floor(self.books[tenant].c) <= self.floor:
                books = self.books.pop(tenant)
                self.out.append(events.Forgotten(self.now, tenant, books.service))
        return tuple(self.out)

    def look(self) -> None:
        """Lift whoever just became backlogged."""
        for tenant in sorted(self.books):
            books, backlogged = self.books[tenant], self.backlogged(tenant)
            if backlogged and not books.joined and books.c < self.floor:
                books.c = Fraction(self.floor)
                self.out.append(events.Lifted(self.now, tenant, self.floor))
            books.joined = backlogged

    def raise_floor(self) -> None:
        if tenants := self.contenders():
            self.floor = max(self.floor, *(min(floor(self.s(t)) for t in tenants),) * 2)

    def grant(self) -> None:
        self.raise_floor()
        while tenants := self.contenders():
            if self.fair:
                tenant = min(tenants, key=lambda t: (floor(self.books[t].c), t))
            else:
                tenant = min(tenants, key=lambda t: self.waiting(t)[0].order)
            w = self.waiting(tenant)[0]
            replica = self.place(w)
            if replica is None:
                return
            w.where, w.lost = replica, False
            fee = 0
            if w.paid is None:
                fee = w.paid = self.config.prices.uncached * w.spec.prompt_tokens
                self.books[tenant].charge(fee)
            self.out.append(events.Granted(self.now, w.spec.request, tenant, replica, fee))
            self.look()
            self.raise_floor()

    def on_enqueued(self, e) -> None:
        if e.request in self.work:
            return
        w = Work(e, self.orders, e.now, prompt=e.prompt_tokens)
        self.orders += 1
        if e.tenant in self.books:
            self.on_tenantchanged(events.TenantChanged(e.now, e.tenant, e.terms))
        reason = None
        if e.prompt_tokens > e.terms.max_prompt_tokens:
            reason = RefusalReason.PROMPT_LIMIT
        elif e.max_output_tokens > e.terms.max_output_tokens:
            reason = RefusalReason.OUTPUT_LIMIT
        elif e.sequences > e.terms.concurrency:
            reason = RefusalReason.CONCURRENCY
        elif self.homeless(w):
            reason = RefusalReason.NO_REPLICA_FITS
        if reason:
            self.out.append(events.Refused(e.now, e.request, e.tenant, reason))
            return
        if e.tenant not in self.books:
            self.books[e.tenant] = Books(e.terms, Fraction(self.floor))
        self.work[e.request] = w
        self.look()

    def homeless(self, w) -> bool:
        up = [r for r in self.replicas if self.replicas[r][1]]
        return bool(up) and not any(self.room(r, w, empty=True) for r in up)

    def in_flight(self, request):
        w = self.work.get(request)
        return w if w is not None and w.where != "waiting" else None

    def on_corrected(self, e) -> None:
        if not (w := self.in_flight(e.request)):
            return
        books = self.books[w.spec.tenant]
        if not w.known:
            books.extra += max(0, e.prompt_tokens - w.spec.prompt_tokens)
        tokens = min(e.prompt_tokens, w.spec.prompt_tokens)
        hits = min(e.cached_tokens, tokens)
        prices = self.config.prices
        price = prices.uncached * (tokens - hits) + prices.cached * hits
        if w.open and price < w.paid:
            books.charge(price - w.paid)
            w.paid = price
        w.known, w.prompt = True, e.prompt_tokens
        self.look()

    def on_emitted(self, e) -> None:
        if not (w := self.in_flight(e.request)):
            return
        new = min(e.output_tokens, w.cap)
        if new > w.out:
            self.books[w.spec.tenant].charge(self.config.prices.output * (new - w.out))
            w.out = new
        self.look()

    def on_finished(self, e) -> None:
        self.on_emitted(e)
        if w := self.in_flight(e.request):
            self.books[w.spec.tenant].extra += max(0, e.output_tokens - w.cap)
            del self.work[e.request]
        self.look()

    def on_notstarted(self, e) -> None:
        if w := self.in_flight(e.request):
            if not w.out:
                self.books[w.spec.tenant].charge(-w.paid)
            del self.work[e.request]
        self.look()

    def on_requeued(self, e) -> None:
        w = self.in_flight(e.request)
        if w and not w.out:
            w.where = "waiting"
        self.look()

    def on_cancelled(self, e) -> None:
        w = self.work.get(e.request)
        if w and w.where == "waiting":
            self.withdraw(w)

    def withdraw(self, w) -> None:
        if w.paid:
            self.books[w.spec.tenant].charge(-w.paid)
        del self.work[w.spec.request]
        self.look()

    def on_tenantchanged(self, e) -> None:
        books = self.books.get(e.tenant)
        if books is None or books.terms == e.terms:
            return
        ratio = Fraction(books.terms.weight_milli, e.terms.weight_milli)
        books.c = self.floor + (books.c - self.floor) * ratio
        books.terms = e.terms
        for w in self.waiting(e.tenant):
            if w.spec.sequences > e.terms.concurrency:
                self.withdraw(w)
                self.out.append(
                    events.Refused(e.now, w.spec.request, e.tenant, RefusalReason.CONCURRENCY)
                )
        self.look()

    def on_replicaup(self, e) -> None:
        if self.replicas.get(e.replica) != [e.capacity, True]:
            self.replicas[e.replica] = [e.capacity, True]
            self.evict_homeless()

    def on_replicadrained(self, e) -> None:
        if e.replica in self.replicas:
            self.replicas[e.replica][1] = False
            self.evict_homeless()

    def on_replicalost(self, e) -> None:
        if self.replicas.pop(e.replica, None):
            for w in sorted(self.flying(), key=lambda w: w.order):
                if w.where == e.replica and not w.lost:
                    w.lost = True
                    if not w.out:
                        w.where = "waiting"
                        self.look()
            self.evict_homeless()

    def on_ticked(self, e) -> None:
        pass

    def evict_homeless(self) -> None:
        for w in self.waiting():
            if self.homeless(w):
                self.withdraw(w)
                self.out.append(events.Refused(self.now, w.spec.request, w.spec.tenant))


def _hash(affinity: int, replica: str) -> tuple:
    return blake2b(f"{affinity}/{replica}".encode(), digest_size=8).digest(), replica
