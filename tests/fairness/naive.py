"""The dispatcher's twin: nothing is cached, every sum is taken again, counters are fractions.

Written from the contract, not from the dispatcher. It shares only the event values.
"""

from collections.abc import Callable
from fractions import Fraction
from math import floor

from fairness import events
from fairness.types import GrantReason, PassReason, PoolConfig, RefusalReason
from tests.fairness.naive_lane import NaiveLane
from tests.fairness.naive_state import PINNED, WAITING, Books, Work


class NaivePool(NaiveLane):
    """`refuses` is the policy's word on arrivals: seconds to wait, or None."""

    def __init__(
        self,
        config: PoolConfig,
        *,
        fair: bool = True,
        refuses: Callable[[float, str], float | None] = lambda now, tenant: None,
    ) -> None:
        super().__init__(config, fair=fair)
        self.refuses = refuses
        self.orders = 0
        self.stopped_at: str | None = None
        self.misfits = 0
        self.overtakes_max = 0

    # --- the fold ---

    def apply(self, event) -> tuple:
        self.out, self.now = [], event.now
        self.read_meter()
        self.expire()
        getattr(self, "on_" + type(event).__name__.lower())(event)
        self.grant_all()
        self.note_misses()
        self.forget()
        return tuple(self.out)

    def expire(self) -> None:
        ttl = self.config.ttl_s
        for w in sorted(self.unsent(), key=lambda w: (w.spec.now + ttl, w.order)):
            if w.spec.now + ttl <= self.now:
                self.withdraw(w)
                up = len(self.accepting())
                self.out.append(events.Expired(self.now, w.spec.request, w.spec.tenant, up))

    def look(self) -> None:
        """Say what has become of the tenants since they were last looked at."""
        for tenant in sorted(self.books):
            books, state = self.books[tenant], self.state(tenant)
            before, books.state = books.state, state
            if state == "blocked" != before:
                self.out.append(events.Blocked(self.now, tenant))
                self.stop_clock(self.waiting(tenant)[0])
            if state != "backlogged":
                continue
            if before == "blocked":
                self.out.append(events.Unblocked(self.now, tenant))
            if before != "backlogged" and books.c < self.floor:
                books.c = Fraction(self.floor)
                self.out.append(events.Lifted(self.now, tenant, self.floor))
            head = self.waiting(tenant)[0]
            if head.deadline is None:
                self.give_deadline(head)

    def forget(self) -> None:
        for tenant in sorted(self.books, key=lambda t: (self.books[t].counter, t)):
            if not self.rows(tenant) and self.books[tenant].counter <= self.floor:
                books = self.books.pop(tenant)
                self.forgotten_service += books.service
                self.out.append(events.Forgotten(self.now, tenant, books.service))

    # --- grants ---

    def grant_all(self) -> None:
        while True:
            self.dispatch()
            if tenants := self.contenders():
                self.floor = max(self.floor, min(floor(self.settled(t)) for t in tenants))
            least = self.least()
            if least is None:
                self.stopped_at = None
                return
            w, replica = self.choose(least)
            if not self.grant_one(least, w, replica):
                self.stop(w)
                return

    def grant_one(self, least, w: Work, replica) -> bool:
        """Grant or pin one request; False if the pool has to stop at `w`."""
        if replica is None and w.passes >= self.config.max_passes:
            if not self.pinnable(w):
                return False
            self.pin(w)
            return True
        reason, choice = GrantReason.URGENT, self.urgent(least)
        if choice is None:
            if replica is not None:
                self.grant(w, replica, GrantReason.TURN, least)
                return True
            reason, choice = GrantReason.PASS, self.passer(least)
        if choice is None:
            return False
        if replica is None:
            w.passes += 1
            self.note_pass(w, choice[0], w.passes, PassReason.MISFIT)
        self.grant(*choice, reason, least)
        return True

    def passer(self, least) -> tuple[Work, str] | None:
        """Whoever, near enough to `least`, comes next and fits."""
        others = [t for t in self.contenders() if t != least and self.within_slack(t, least)]
        for tenant in sorted(others, key=lambda t: (self.rank(t), t)):
            w, replica = self.choose(tenant)
            if replica is not None:
                return w, replica
        return None

    def note_pass(self, w: Work, by: Work, passes: int, reason: PassReason) -> None:
        self.overtakes_max = max(self.overtakes_max, passes)
        self.out.append(
            events.Passed(self.now, w.spec.request, w.spec.tenant, by.spec.request, passes, reason)
        )

    def grant(self, w: Work, replica, reason: GrantReason, least) -> None:
        head = self.waiting(w.spec.tenant)[0]
        if w is not head:
            head.overtakes += 1
            self.note_pass(head, w, head.overtakes, PassReason.LOCALITY)
        if reason is GrantReason.URGENT:
            self.enter_lane(w)
        counters = self.books[w.spec.tenant].counter, self.books[least].counter
        fee = self.take(w, replica)
        self.out.append(
            events.Granted(self.now, w.spec.request, w.spec.tenant, replica, fee, reason, *counters)
        )
        self.look()

    def take(self, w: Work, where: str) -> int:
        """Charge its prompt, unless that was done before, and count it as in flight."""
        fee = 0
        if w.paid is None:
            fee = w.paid = self.config.prices.uncached * w.spec.prompt_tokens
            self.book(self.books[w.spec.tenant], fee)
        w.where, w.lost = where, False
        self.touch(w)
        return fee

    def stop(self, w: Work) -> None:
        starved = any(self.has_slots(r, w, self.load(r)) for r in self.free())
        before, self.stopped_at = self.stopped_at, w.spec.request if starved else None
        self.misfits += self.stopped_at not in {None, before}

    # --- the pin ---

    def pinnable(self, w: Work) -> list[str]:
        """Replicas that have the slots for it and lack only KV; none while another is pinned."""
        if self.pinned():
            return []
        return [r for r in self.homes(w) if self.has_slots(r, w, self.load(r))]

    def pin(self, w: Work) -> None:
        w.hold = min(
            self.pinnable(w),
            key=lambda r: (-self.spare_blocks(r, w, self.on(r)), self.load(r), r),
        )
        counter = self.books[w.spec.tenant].counter
        fee = self.take(w, PINNED)
        self.out.append(
            events.Pinned(self.now, w.spec.request, w.spec.tenant, w.hold, fee, counter, counter)
        )
        self.look()

    def dispatch(self) -> None:
        w = self.pinned()
        if w and self.room(w.hold, w):
            w.where = w.hold
            self.out.append(events.Dispatched(self.now, w.spec.request, w.spec.tenant, w.hold))

    def unpin_homeless(self) -> None:
        w = self.pinned()
        if w and w.hold not in self.homes(w):
            w.where = WAITING
            self.out.append(events.Unpinned(self.now, w.spec.request, w.spec.tenant))
            self.look()

    # --- requests ---

    def sent(self, request) -> Work | None:
        w = self.work.get(request)
        return w if w is not None and w.where not in {WAITING, PINNED} else None

    def unsent(self, tenant=None) -> list[Work]:
        rows = [w for w in self.rows(tenant) if w.where in {WAITING, PINNED}]
        return sorted(rows, key=lambda w: w.place_in_line)

    def on_enqueued(self, e) -> None:
        if e.request in self.work:
            return
        w = Work(e, self.orders, e.prompt_tokens)
        self.orders += 1
        self.on_tenantchanged(e)
        if refusal := self.refusal(w):
            self.refuse(w, *refusal)
            return
        if e.tenant not in self.books:
            self.books[e.tenant] = Books(e.terms, Fraction(self.floor))
        self.work[e.request] = w
        self.look()

    def refusal(self, w: Work) -> tuple[RefusalReason, float | None] | None:
        e = w.spec
        if e.prompt_tokens > e.terms.max_prompt_tokens:
            return RefusalReason.PROMPT_LIMIT, None
        if e.max_output_tokens > e.terms.max_output_tokens:
            return RefusalReason.OUTPUT_LIMIT, None
        if e.sequences > e.terms.concurrency:
            return RefusalReason.CONCURRENCY, None
        if self.homeless(w):
            return RefusalReason.NO_REPLICA_FITS, None
        seconds = self.refuses(self.now, e.tenant)
        if seconds is not None:
            return RefusalReason.RATE, seconds
        excess = self.predicted_wait(e.tenant) - self.config.ttl_s
        return (RefusalReason.PREDICTED_WAIT, max(1.0, excess)) if excess > 0 else None

    def refuse(self, w: Work, reason: RefusalReason, seconds: float | None = None) -> None:
        self.out.append(events.Refused(self.now, w.spec.request, w.spec.tenant, reason, seconds))

    def on_corrected(self, e) -> None:
        if not (w := self.sent(e.request)):
            return
        books, prices = self.books[w.spec.tenant], self.config.prices
        if not w.known:
            books.extra += max(0, e.prompt_tokens - w.spec.prompt_tokens)
        tokens = min(e.prompt_tokens, w.spec.prompt_tokens)
        hits = min(e.cached_tokens, tokens)
        price = prices.uncached * (tokens - hits) + prices.cached * hits
        if w.open and price < w.paid:
            self.book(books, price - w.paid)
            w.paid = price
        w.known, w.prompt = True, e.prompt_tokens
        self.look()

    def on_emitted(self, e) -> None:
        if not (w := self.sent(e.request)):
            return
        new = min(e.output_tokens, w.cap)
        if new > w.out:
            self.book(self.books[w.spec.tenant], self.config.prices.output * (new - w.out))
            w.out = new
        self.look()

    def on_finished(self, e) -> None:
        self.on_emitted(e)
        if w := self.sent(e.request):
            self.books[w.spec.tenant].extra += max(0, e.output_tokens - w.cap)
            self.note_length(w)
            self.end(w)

    def on_notstarted(self, e) -> None:
        if w := self.sent(e.request):
            if not w.out:
                self.refund(w)
            self.end(w)

    def on_requeued(self, e) -> None:
        w = self.sent(e.request)
        if w and not w.out:
            self.send_back(w)
            if self.homeless(w):
                self.withdraw(w)
                self.refuse(w, RefusalReason.NO_REPLICA_FITS)

    def send_back(self, w: Work) -> None:
        self.leave_lane(w)
        w.where = WAITING
        self.look()

    def on_cancelled(self, e) -> None:
        w = self.work.get(e.request)
        if w and w in self.unsent():
            self.withdraw(w)

    def withdraw(self, w: Work) -> None:
        self.refund(w)
        self.end(w)

    def end(self, w: Work) -> None:
        self.leave_lane(w)
        del self.work[w.spec.request]
        self.look()

    # --- the pool ---

    def on_tenantchanged(self, e) -> None:
        books = self.books.get(e.tenant)
        if books is None or books.terms == e.terms:
            return
        ratio = Fraction(books.terms.weight_milli, e.terms.weight_milli)
        books.c = self.floor + (books.c - self.floor) * ratio
        books.terms = e.terms
        for w in self.unsent(e.tenant):
            if w.spec.sequences > e.terms.concurrency:
                self.withdraw(w)
                self.refuse(w, RefusalReason.CONCURRENCY)
        self.look()

    def on_replicaup(self, e) -> None:
        if self.replicas.get(e.replica) != [e.capacity, True]:
            self.replicas[e.replica] = [e.capacity, True]
            self.recount()

    def on_replicadrained(self, e) -> None:
        if e.replica in self.replicas:
            self.replicas[e.replica][1] = False
            self.recount()

    def on_replicalost(self, e) -> None:
        if e.replica not in self.replicas:
            return
        held = sorted(self.on(e.replica), key=lambda w: w.order)
        del self.replicas[e.replica]
        self.unpin_homeless()
        for w in held:
            w.lost = True
            if not w.out:
                self.send_back(w)
        self.recount()

    def recount(self) -> None:
        """What replicas can hold has changed."""
        self.unpin_homeless()
        self.credit = sum(c.slots + self.config.lookahead for c, _ in self.replicas.values())
        for w in sorted(self.waiting(), key=lambda w: w.order):
            if self.homeless(w):
                self.withdraw(w)
                self.refuse(w, RefusalReason.NO_REPLICA_FITS)

    def on_restarted(self, e) -> None:
        for w in sorted(self.rows(), key=lambda w: w.order):
            if not w.out:
                self.refund(w)
            self.leave_lane(w)
        self.work, self.replicas, self.prefixes = {}, {}, []
        self.credit, self.window = 0, None
        for books in self.books.values():
            books.state = "idle"

    def on_ticked(self, e) -> None:
        pass

    on_degradedon = on_degradedoff = on_ticked
