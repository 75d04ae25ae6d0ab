"""One pool's fair queue as a fold: an event goes in, grants and other effects come out.

The dispatcher is the only writer of its accounts, tickets and replicas. Time comes only from the
events and must not go backwards; the same events in the same order give the same effects. Events
about requests that are unknown, ended, or not in the state the event speaks of are ignored: such
races are natural between a client's disconnect, an engine's report and a replica's death.
"""

from heapq import heappop, heappush
from itertools import count

from fairness import events
from fairness.bound import bound_terms, spread
from fairness.cost import output_cost, prompt_cost
from fairness.counters import Account, Ticket
from fairness.credits import Replica
from fairness.ledger import Ledger
from fairness.metrics import PoolSnapshot
from fairness.placement import place
from fairness.policy import Policy
from fairness.snapshot import replica_snapshot, service_jain, tenant_snapshot
from fairness.types import (
    GrantReason,
    PoolConfig,
    RefusalReason,
    ReplicaCapacity,
    ReplicaId,
    RequestId,
    TenantId,
    TenantTerms,
)


class Dispatcher:
    """Folds `apply` over a pool's events. See docs/fairness.md for what it promises."""

    def __init__(self, config: PoolConfig, policy: Policy) -> None:
        self._config = config
        self._prices = config.prices
        self._ledger = Ledger(policy, config.prices, self._head)
        self._tickets: dict[RequestId, Ticket] = {}
        self._replicas: dict[ReplicaId, Replica] = {}
        self._deadlines: list[tuple[float, int, RequestId]] = []
        self._arrivals = count()
        self._now = 0.0
        self._effects: list[events.Effect] = []
        self._stopped_at: RequestId | None = None
        self._misfits = 0

    def apply(self, event: events.Input) -> tuple[events.Effect, ...]:
        """Take one event; the effects are in the order in which they happened."""
        self._effects = []
        self._now = event.now
        self._expire()
        self._take(event)
        self._grant_all()
        for account in self._ledger.forget():
            self._effects.append(events.Forgotten(self._now, account.tenant, account.service))
        return tuple(self._effects)

    def snapshot(self) -> PoolSnapshot:
        """The pool as it stands after the last event."""
        ledger = self._ledger
        backlogged = ledger.backlogged()
        return PoolSnapshot(
            floor=ledger.floor,
            spread=spread(backlogged),
            bound=bound_terms(backlogged, ledger.credit, self._prices, ledger.floor_lag()),
            jain=service_jain(backlogged, self._now),
            stopped_at=self._stopped_at,
            misfits=self._misfits,
            tenants=tuple(tenant_snapshot(a, self._head(a)) for a in ledger.accounts.values()),
            replicas=tuple(replica_snapshot(replica) for replica in self._replicas.values()),
        )

    # --- inputs --------------------------------------------------------------------------------

    def _take(self, event: events.Input) -> None:
        match event:
            case events.Emitted():
                self._emit(event.request, event.output_tokens)
            case events.Enqueued():
                self._enqueue(event)
            case events.Corrected():
                self._correct(event)
            case events.Finished():
                self._emit(event.request, event.output_tokens)
                self._finish(event.request, event.output_tokens)
            case events.NotStarted():
                self._refund_unstarted(event.request)
            case events.Requeued():
                self._requeue(event.request)
            case events.Cancelled():
                self._cancel(event.request)
            case _:
                self._take_pool_event(event)

    def _take_pool_event(self, event: events.PoolInput) -> None:
        match event:
            case events.TenantChanged():
                self._change_tenant(event.tenant, event.terms)
            case events.ReplicaUp():
                self._raise_replica(event.replica, event.capacity)
            case events.ReplicaDrained():
                self._drain_replica(event.replica)
            case events.ReplicaLost():
                self._lose_replica(event.replica)
            case _:
                pass

    def _enqueue(self, event: events.Enqueued) -> None:
        if event.request in self._tickets:
            return
        ticket = Ticket(
            request=event.request,
            tenant=event.tenant,
            arrival=next(self._arrivals),
            enqueued_at=event.now,
            prompt_tokens=event.prompt_tokens,
            max_output_tokens=event.max_output_tokens,
            sequences=event.sequences,
            affinity=event.affinity,
            kv_prompt_tokens=event.prompt_tokens,
        )
        self._change_tenant(event.tenant, event.terms)
        reason = _over_limit(ticket, event.terms) or self._misplaced(ticket)
        if reason is not None:
            self._effects.append(events.Refused(event.now, event.request, event.tenant, reason))
            return
        account = self._ledger.open(event.tenant, event.terms)
        self._tickets[event.request] = ticket
        self._wait(account, ticket)
        self._changed(account)

    def _correct(self, event: events.Corrected) -> None:
        ticket = self._in_flight(event.request)
        if ticket is None or ticket.charged is None:
            return
        account = self._account(ticket)
        if not ticket.corrected:
            account.uncharged_tokens += max(0, event.prompt_tokens - ticket.prompt_tokens)
        tokens = min(event.prompt_tokens, ticket.prompt_tokens)
        cost = prompt_cost(self._prices, tokens, min(event.cached_tokens, tokens))
        before = ticket.refundable
        if before:
            account.charge(min(0, cost - ticket.charged))
            ticket.charged = min(cost, ticket.charged)
        ticket.corrected = True
        account.unsettled += ticket.refundable - before
        self._resize(ticket, event.prompt_tokens, ticket.output_tokens)
        self._changed(account)

    def _emit(self, request: RequestId, output_tokens: int) -> None:
        ticket = self._in_flight(request)
        if ticket is None:
            return
        fresh = min(output_tokens, ticket.output_limit) - ticket.output_tokens
        if fresh <= 0:
            return
        account = self._account(ticket)
        before = ticket.refundable
        cost = output_cost(self._prices, fresh)
        account.charge(cost)
        account.open_output -= cost
        self._resize(ticket, ticket.kv_prompt_tokens, ticket.output_tokens + fresh)
        account.unsettled += ticket.refundable - before
        self._changed(account)

    def _finish(self, request: RequestId, output_tokens: int) -> None:
        ticket = self._in_flight(request)
        if ticket is None:
            return
        account = self._account(ticket)
        account.uncharged_tokens += max(0, output_tokens - ticket.output_limit)
        self._land(account, ticket)
        self._end(account, ticket)

    def _refund_unstarted(self, request: RequestId) -> None:
        ticket = self._in_flight(request)
        if ticket is None:
            return
        account = self._account(ticket)
        if not ticket.output_tokens:
            account.charge(-(ticket.charged or 0))
        self._land(account, ticket)
        self._end(account, ticket)

    def _requeue(self, request: RequestId) -> None:
        ticket = self._in_flight(request)
        if ticket is None or ticket.output_tokens:
            return
        account = self._account(ticket)
        self._land(account, ticket)
        self._wait(account, ticket)
        self._changed(account)

    def _cancel(self, request: RequestId) -> None:
        ticket = self._tickets.get(request)
        if ticket is not None and ticket.replica is None:
            self._withdraw(ticket)

    def _change_tenant(self, tenant: TenantId, terms: TenantTerms) -> None:
        account = self._ledger.accounts.get(tenant)
        if account is None or account.terms == terms:
            return
        account.set_terms(terms, self._ledger.floor)
        for ticket in self._waiting(account):
            if ticket.sequences > terms.concurrency:
                self._refuse(ticket, RefusalReason.CONCURRENCY)
        self._changed(account)

    def _raise_replica(self, name: ReplicaId, capacity: ReplicaCapacity) -> None:
        replica = self._replicas.get(name)
        if replica is None:
            self._replicas[name] = Replica(name, capacity)
        elif replica.accepting and replica.capacity == capacity:
            return
        else:
            replica.accepting = True
            replica.set_capacity(capacity)
        self._recount_credit()

    def _drain_replica(self, name: ReplicaId) -> None:
        replica = self._replicas.get(name)
        if replica is not None:
            replica.accepting = False
            self._recount_credit()

    def _lose_replica(self, name: ReplicaId) -> None:
        replica = self._replicas.pop(name, None)
        if replica is not None:
            for ticket in sorted(replica.held.values(), key=_arrival):
                self._requeue(ticket.request)
            self._recount_credit()

    # --- grants --------------------------------------------------------------------------------

    def _grant_all(self) -> None:
        """Grant while the next tenant's head fits; a head that does not fit stops the pool."""
        self._ledger.advance_floor()
        while (account := self._ledger.next()) is not None:
            ticket = self._head(account)
            if ticket is None:
                raise AssertionError(f"backlogged tenant {account.tenant} has nothing waiting")
            replica = place(self._replicas.values(), ticket, self._config)
            if replica is None:
                self._stop_at(ticket)
                return
            self._grant(account, ticket, replica)
            self._ledger.advance_floor()
        self._stopped_at = None

    def _grant(self, account: Account, ticket: Ticket, replica: Replica) -> None:
        charge = 0
        if ticket.charged is None:
            charge = prompt_cost(self._prices, ticket.prompt_tokens)
            ticket.charged = charge
        account.num_waiting -= 1
        account.in_flight += ticket.sequences
        account.open_output += self._open_output(ticket)
        account.note_grant(self._ledger.floor_lag(), charge)
        account.charge(charge)
        account.unsettled += charge
        replica.hold(ticket)
        self._effects.append(
            events.Granted(
                self._now,
                ticket.request,
                ticket.tenant,
                replica.id,
                charge,
                GrantReason.TURN,
                account.counter,
                account.counter,
            )
        )
        self._changed(account)

    def _stop_at(self, ticket: Ticket) -> None:
        starved = any(
            replica.accepting and replica.has_slots(ticket, self._config)
            for replica in self._replicas.values()
        )
        stopped_at = ticket.request if starved else None
        self._misfits += stopped_at is not None and stopped_at != self._stopped_at
        self._stopped_at = stopped_at

    # --- tickets -------------------------------------------------------------------------------

    def _head(self, account: Account) -> Ticket | None:
        """The tenant's oldest waiting request; entries of requests that left are dropped here."""
        while account.waiting:
            arrival, request = account.waiting[0]
            ticket = self._tickets.get(request)
            if ticket is not None and ticket.replica is None and ticket.arrival == arrival:
                return ticket
            heappop(account.waiting)
        return None

    def _waiting(self, account: Account) -> list[Ticket]:
        tickets = (self._tickets.get(request) for _, request in sorted(account.waiting))
        return [ticket for ticket in tickets if ticket is not None and ticket.replica is None]

    def _in_flight(self, request: RequestId) -> Ticket | None:
        ticket = self._tickets.get(request)
        return None if ticket is None or ticket.replica is None else ticket

    def _account(self, ticket: Ticket) -> Account:
        return self._ledger.accounts[ticket.tenant]

    def _wait(self, account: Account, ticket: Ticket) -> None:
        ticket.replica = None
        heappush(account.waiting, (ticket.arrival, ticket.request))
        deadline = ticket.enqueued_at + self._config.ttl_s
        heappush(self._deadlines, (deadline, ticket.arrival, ticket.request))
        account.num_waiting += 1

    def _land(self, account: Account, ticket: Ticket) -> None:
        """Return the credit of a request that is no longer in flight."""
        replica = self._holder(ticket)
        if replica is not None:
            replica.release(ticket)
        account.in_flight -= ticket.sequences
        account.open_output -= self._open_output(ticket)

    def _end(self, account: Account, ticket: Ticket) -> None:
        account.unsettled -= ticket.refundable
        del self._tickets[ticket.request]
        self._changed(account)

    def _withdraw(self, ticket: Ticket) -> None:
        """End a waiting request; one that was granted before gets its charge back."""
        account = self._account(ticket)
        account.charge(-(ticket.charged or 0))
        account.num_waiting -= 1
        self._end(account, ticket)

    def _refuse(self, ticket: Ticket, reason: RefusalReason) -> None:
        self._withdraw(ticket)
        self._effects.append(events.Refused(self._now, ticket.request, ticket.tenant, reason))

    def _resize(self, ticket: Ticket, prompt_tokens: int, output_tokens: int) -> None:
        """Change a ticket's lengths together with the blocks its replica counts for it."""
        replica = self._holder(ticket)
        if replica is not None:
            replica.num_blocks -= ticket.num_blocks(replica.capacity.block_size)
        ticket.kv_prompt_tokens = prompt_tokens
        ticket.output_tokens = output_tokens
        if replica is not None:
            replica.num_blocks += ticket.num_blocks(replica.capacity.block_size)

    def _holder(self, ticket: Ticket) -> Replica | None:
        """The replica that counts the ticket as in flight; None once that replica was lost."""
        replica = self._replicas.get(ticket.replica or "")
        return replica if replica is not None and ticket.request in replica.held else None

    def _open_output(self, ticket: Ticket) -> int:
        return output_cost(self._prices, ticket.output_limit - ticket.output_tokens)

    # --- bookkeeping ---------------------------------------------------------------------------

    def _changed(self, account: Account) -> None:
        if self._ledger.changed(account, self._now):
            self._effects.append(events.Lifted(self._now, account.tenant, account.counter))

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._now:
            _, arrival, request = heappop(self._deadlines)
            ticket = self._tickets.get(request)
            if ticket is None or ticket.arrival != arrival:
                continue
            if ticket.replica is None:
                up = sum(replica.accepting for replica in self._replicas.values())
                self._withdraw(ticket)
                self._effects.append(events.Expired(self._now, request, ticket.tenant, up))

    def _recount_credit(self) -> None:
        """Capacity changed: recount N's pool part, refuse what no replica could ever hold now."""
        lookahead = self._config.lookahead
        self._ledger.set_credit(
            sum(replica.capacity.slots + lookahead for replica in self._replicas.values())
        )
        for ticket in tuple(self._tickets.values()):
            if ticket.replica is None and (reason := self._misplaced(ticket)):
                self._refuse(ticket, reason)

    def _misplaced(self, ticket: Ticket) -> RefusalReason | None:
        """Why no replica that accepts could hold it even when empty; with none up it may wait."""
        accepting = [replica for replica in self._replicas.values() if replica.accepting]
        if not accepting or any(r.could_hold(ticket, self._config) for r in accepting):
            return None
        return RefusalReason.NO_REPLICA_FITS


def _over_limit(ticket: Ticket, terms: TenantTerms) -> RefusalReason | None:
    if ticket.prompt_tokens > terms.max_prompt_tokens:
        return RefusalReason.PROMPT_LIMIT
    if ticket.max_output_tokens > terms.max_output_tokens:
        return RefusalReason.OUTPUT_LIMIT
    if ticket.sequences > terms.concurrency:
        return RefusalReason.CONCURRENCY
    return None


def _arrival(ticket: Ticket) -> int:
    return ticket.arrival
