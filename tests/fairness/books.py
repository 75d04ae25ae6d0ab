"""One pool's books as the outside keeps them: prices, limits, events and effects, nothing else.

They follow what the dispatcher says it did and refuse what could not be true: charges, the floor,
who is backlogged, what fits where, deadlines. They never choose; who might have been chosen is for
`tests/fairness/promises`.
"""

from fairness import events
from fairness.types import RefusalReason, TenantTerms
from tests.fairness.outside import IDLE, LOST, Account, Room, Seen, demand
from tests.fairness.standing import Standing

PREFIXES = 4_096


class Books(Standing):
    """`begin`, then `take` the event and `grant`, `pin` and `dispatch` as told, then `finish`."""

    def take(self, event: events.Input) -> None:
        handler = getattr(self, f"_on_{type(event).__name__.lower()}", None)
        if handler is not None:
            handler(event)

    # --- requests ---

    def _on_enqueued(self, event) -> None:
        if event.request in self.live:
            return
        seen = Seen(event, self.arrivals, event.prompt_tokens)
        self.arrivals += 1
        self._change_terms(event.tenant, event.terms)
        refusal = next((e for e in self.refused if e.request == event.request), None)
        self._check_arrival(seen, refusal)
        if refusal is not None:
            return
        account = self.accounts.get(event.tenant)
        if account is None:
            account = self.accounts[event.tenant] = Account(event.tenant, event.terms, self.floor)
            account.limit(self.config, self.credit)
            self.terms[event.tenant] = event.terms
        self.live[event.request] = seen
        account.join_queue(seen)
        self.look(account)

    def _check_arrival(self, seen: Seen, refusal: events.Refused | None) -> None:
        """What can never be granted is refused, and why; other refusals say when to come again."""
        spec = seen.spec
        due = None
        if spec.prompt_tokens > spec.terms.max_prompt_tokens:
            due = RefusalReason.PROMPT_LIMIT
        elif spec.max_output_tokens > spec.terms.max_output_tokens:
            due = RefusalReason.OUTPUT_LIMIT
        elif spec.sequences > spec.terms.concurrency:
            due = RefusalReason.CONCURRENCY
        elif self.homeless(seen):
            due = RefusalReason.NO_REPLICA_FITS
        told = None if refusal is None else refusal.reason
        if due is None and told in {RefusalReason.RATE, RefusalReason.PREDICTED_WAIT}:
            demand(refusal.retry_after_s > 0, "a refusal in time says when to come again", refusal)
        else:
            demand(told == due, "what can never be granted is refused, no other", refusal, due)

    def _on_cancelled(self, event) -> None:
        seen = self.live.get(event.request)
        if seen is not None and seen.replica is None:
            self.withdraw(seen)

    def _flying(self, request: str) -> Seen | None:
        seen = self.live.get(request)
        return seen if seen is not None and seen.replica is not None else None

    def _on_corrected(self, event) -> None:
        seen = self._flying(event.request)
        if seen is None:
            return
        tokens = min(event.prompt_tokens, seen.spec.prompt_tokens)
        hits = min(event.cached_tokens, tokens)
        price = self.prices.uncached * (tokens - hits) + self.prices.cached * hits
        before = seen.refundable
        if before and price < seen.paid:
            self._charge(seen, price - seen.paid)
            seen.paid = price
        seen.known = True
        self.accounts[seen.spec.tenant].unsettled += seen.refundable - before
        self._resize(seen, event.prompt_tokens, seen.out)

    def _on_emitted(self, event) -> None:
        seen = self._flying(event.request)
        if seen is None:
            return
        out = min(event.output_tokens, seen.output_limit)
        if out > seen.out:
            before = seen.refundable
            self._charge(seen, self.prices.output * (out - seen.out))
            self._resize(seen, seen.prompt, out)
            self.accounts[seen.spec.tenant].unsettled += seen.refundable - before

    def _on_finished(self, event) -> None:
        self._on_emitted(event)
        seen = self._flying(event.request)
        if seen is not None:
            self._land(seen)
            self._end(seen)

    def _on_notstarted(self, event) -> None:
        seen = self._flying(event.request)
        if seen is not None:
            if not seen.out:
                self._charge(seen, -seen.paid)
            self._land(seen)
            self._end(seen)

    def _on_requeued(self, event) -> None:
        seen = self._flying(event.request)
        if seen is not None and not seen.out:
            self._land(seen)
            self._wait_again(seen)
            self._withdraw_refused()

    def withdraw(self, seen: Seen) -> None:
        """A waiting or pinned request ends; what it was charged is given back."""
        self._charge(seen, -seen.paid)
        account = self.accounts[seen.spec.tenant]
        if seen is self.pinned:
            self.pinned = None
            account.in_flight -= seen.spec.sequences
        else:
            account.leave_queue(seen)
        self._end(seen)

    def _end(self, seen: Seen) -> None:
        account = self.accounts[seen.spec.tenant]
        account.unsettled -= seen.refundable
        self._leave_lane(seen)
        del self.live[seen.spec.request]
        self.look(account)

    def _wait_again(self, seen: Seen) -> None:
        self._leave_lane(seen)
        account = self.accounts[seen.spec.tenant]
        account.join_queue(seen)
        self.look(account)

    def _land(self, seen: Seen) -> None:
        room = self.replicas.get(seen.replica)
        if room is not None and seen in room.held:
            room.release(seen)
        self.accounts[seen.spec.tenant].in_flight -= seen.spec.sequences

    def _resize(self, seen: Seen, prompt: int, out: int) -> None:
        room = self.replicas.get(seen.replica)
        room = room if room is not None and seen in room.held else None
        if room is not None:
            room.blocks -= seen.blocks(room.capacity.block_size)
        seen.prompt, seen.out = prompt, out
        if room is not None:
            room.blocks += seen.blocks(room.capacity.block_size)

    def _charge(self, seen: Seen, milli: int) -> None:
        account = self.accounts[seen.spec.tenant]
        account.raw += 1000 * milli
        account.service += milli
        seen.charged += milli
        self.service += milli
        self.most_service = max(self.most_service, self.service)
        self.level += milli * self.config.urgent_share_milli
        if seen.urgent is not None:
            seen.urgent_charged += milli
            self.urgent += milli

    def _leave_lane(self, seen: Seen) -> None:
        """What the lane set aside for it and it did not use goes back, once."""
        if seen.urgent is not None:
            self.level += 1000 * (seen.urgent - seen.urgent_charged)
            seen.urgent, seen.urgent_charged = None, 0

    # --- tenants and replicas ---

    def _on_tenantchanged(self, event) -> None:
        self._change_terms(event.tenant, event.terms)

    def _change_terms(self, tenant: str, terms: TenantTerms) -> None:
        account = self.accounts.get(tenant)
        if account is None or account.terms == terms:
            return
        lag = account.raw - self.floor * account.terms.weight_milli
        account.raw = lag + self.floor * terms.weight_milli
        account.terms = self.terms[tenant] = terms
        account.limit(self.config, self.credit)
        self.altered.add(tenant)
        self._withdraw_refused(tenant)
        self.look(account)

    def _withdraw_refused(self, tenant: str | None = None) -> None:
        for refusal in self.refused:
            seen = self.live.get(refusal.request)
            if seen is None or tenant not in {None, refusal.tenant}:
                continue
            demand(seen.replica is None, "only what waits is refused", refusal)
            if refusal.reason is RefusalReason.CONCURRENCY:
                holds = seen.spec.sequences > self.terms[refusal.tenant].concurrency
            else:
                holds = refusal.reason is RefusalReason.NO_REPLICA_FITS and self.homeless(seen)
            demand(holds, "a waiting request is refused for a true reason", refusal)
            self.withdraw(seen)

    def _on_replicaup(self, event) -> None:
        room = self.replicas.get(event.replica)
        if room is None:
            room = self.replicas[event.replica] = Room(event.replica, event.capacity)
        room.accepting, room.capacity = True, event.capacity
        room.blocks = sum(seen.blocks(event.capacity.block_size) for seen in room.held)
        self._unpin_if_homeless()
        self._recount()

    def _on_replicadrained(self, event) -> None:
        if event.replica in self.replicas:
            self.replicas[event.replica].accepting = False
            self._unpin_if_homeless()
            self._recount()

    def _on_replicalost(self, event) -> None:
        room = self.replicas.pop(event.replica, None)
        if room is None:
            return
        self._unpin_if_homeless()
        for seen in sorted(room.held, key=lambda seen: seen.arrival):
            seen.replica = LOST
            if not seen.out:
                self.accounts[seen.spec.tenant].in_flight -= seen.spec.sequences
                self._wait_again(seen)
        self._recount()

    def _unpin_if_homeless(self) -> None:
        seen = self.pinned
        if seen is None:
            return
        room = self.replicas.get(seen.pinned)
        if room is None or not room.accepting or not self.could_hold(room, seen):
            self.expect(events.Unpinned, seen.spec.request)
            self.pinned = None
            self.accounts[seen.spec.tenant].in_flight -= seen.spec.sequences
            self._wait_again(seen)

    def _recount(self) -> None:
        self.credit = sum(r.capacity.slots + self.config.lookahead for r in self.replicas.values())
        for account in self.accounts.values():
            account.limit(self.config, self.credit)
        self._withdraw_refused()

    def _on_restarted(self, event) -> None:
        """All requests and replicas are gone; what had begun keeps its charge."""
        for seen in self.live.values():
            if not seen.out:
                self._charge(seen, -seen.paid)
            self._leave_lane(seen)
        self.live, self.replicas, self.prefixes, self.pinned = {}, {}, {}, None
        self.credit = 0
        for account in self.accounts.values():
            account.waiting, account.in_flight, account.unsettled = [], 0, 0
            account.state = IDLE
            account.limit(self.config, 0)

    def forget(self, effect: events.Forgotten) -> None:
        account = self.accounts.pop(effect.tenant)
        demand(account.quiet, "only a quiet tenant is forgotten", effect)
        demand(account.counter <= self.floor, "a debt is not forgotten", effect, self.floor)
        demand(account.service == effect.service_milli, "service is what was charged", effect)
        self.altered.discard(effect.tenant)

    # --- grants as told ---

    def grant(self, seen: Seen, replica: str, *, cost: int | None = None) -> int:
        """Charge a grant, send it, return its fee; `cost` is what the urgent lane sets aside."""
        fee = self._take_up(seen, cost)
        seen.replica = replica
        self.replicas[replica].hold(seen)
        self.look(self.accounts[seen.spec.tenant])
        return fee

    def pin(self, seen: Seen, replica: str) -> int:
        """Charge a pin; it is in flight for its tenant, and for no replica."""
        fee = self._take_up(seen, None)
        seen.pinned, self.pinned = replica, seen
        self.look(self.accounts[seen.spec.tenant])
        return fee

    def dispatch(self, seen: Seen) -> None:
        seen.replica, seen.pinned, self.pinned = seen.pinned, None, None
        self.replicas[seen.replica].hold(seen)

    def _take_up(self, seen: Seen, cost: int | None) -> int:
        account = self.accounts[seen.spec.tenant]
        account.leave_queue(seen)
        if cost is not None:
            self.level -= 1000 * cost
            self.largest_urgent = max(self.largest_urgent, cost)
            seen.urgent, seen.urgent_charged = cost, 0
        fee = 0 if seen.granted else self.prices.uncached * seen.spec.prompt_tokens
        if not seen.granted:
            seen.granted, seen.paid = True, fee
        seen.granted_under = account.terms
        account.in_flight += seen.spec.sequences
        account.unsettled += fee
        self._charge(seen, fee)
        for block in seen.spec.prefix:
            self.prefixes.pop(block, None)
            self.prefixes[block] = None
            if len(self.prefixes) > PREFIXES:
                del self.prefixes[next(iter(self.prefixes))]
        if account.tenant in self.altered:
            self._settle_terms(account)
        return fee

    def _settle_terms(self, account: Account) -> None:
        """A change of terms is past once a grant finds nothing open from before it."""
        mine = [s for s in self.live.values() if s.spec.tenant == account.tenant and s.granted]
        if all(s.granted_under == s.spec.terms == account.terms for s in mine):
            self.altered.discard(account.tenant)
