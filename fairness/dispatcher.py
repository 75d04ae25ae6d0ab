"""One pool's fair queue as a fold: an event goes in, grants and other effects come out.

Time comes only from the events and must not go backwards; the same events in the same order give
the same effects. Events about requests that are unknown, ended, or not in the state the event
speaks of are ignored: such races are natural between a client's disconnect, an engine's report and
a replica's death.
"""

from fairness import events
from fairness.cost import output_cost, prompt_cost
from fairness.counters import Ticket
from fairness.credits import Replica
from fairness.grants import Granter
from fairness.metrics import PoolSnapshot
from fairness.policy import Policy
from fairness.pool import Pool
from fairness.snapshot import pool_snapshot
from fairness.types import (
    PoolConfig,
    Prices,
    RefusalReason,
    ReplicaCapacity,
    ReplicaId,
    RequestId,
    TenantId,
    TenantTerms,
)

LEAST_RETRY_S = 1.0


class Dispatcher:
    """Folds `apply` over a pool's events. See docs/fairness.md for what it promises.

    `pool` and `granter` are its state; only `fairness.checkpoint` and snapshots look at them.
    """

    def __init__(self, config: PoolConfig, policy: Policy) -> None:
        self.pool = Pool(config, policy)
        self.granter = Granter(self.pool)
        self._prices = config.prices

    def apply(self, event: events.Input) -> tuple[events.Effect, ...]:
        """Take one event; the effects are in the order in which they happened."""
        pool = self.pool
        pool.begin(event.now)
        self._expire()
        self._take(event)
        self.granter.grant_all()
        self.granter.report_misses()
        for account in pool.ledger.forget():
            pool.effects.append(events.Forgotten(pool.now, account.tenant, account.service))
        return tuple(pool.effects)

    def snapshot(self) -> PoolSnapshot:
        """The pool as it stands after the last event."""
        return pool_snapshot(self.pool, self.granter)

    def predicted_wait_s(self, tenant: TenantId) -> float:
        """How long the tenant's own queue takes at its own fair share of the pool's usual rate.

        0 while nothing of it waits or no rate is known.
        """
        ledger, rate = self.pool.ledger, self.pool.rates.usual
        account = ledger.accounts.get(tenant)
        if account is None or not account.num_waiting or not rate:
            return 0.0
        ahead = account.waiting_prompts
        if account.mean_output is not None:
            usual = output_cost(self._prices, account.mean_output * account.waiting_sequences)
            ahead += min(output_cost(self._prices, account.waiting_output), usual // 1_000)
        weight = account.terms.weight_milli
        competing = ledger.weight + (0 if account.backlogged else weight)
        return ahead * competing / (rate * weight)

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
            case events.Restarted():
                self._restart()
            case events.Ticked() | events.DegradedOn() | events.DegradedOff():
                pass  # only their time matters here, and what the log's readers make of them

    def _expire(self) -> None:
        pool = self.pool
        for ticket in pool.due():
            up = sum(replica.accepting for replica in pool.replicas.values())
            pool.withdraw(ticket)
            pool.effects.append(events.Expired(pool.now, ticket.request, ticket.tenant, up))

    # --- requests ------------------------------------------------------------------------------

    def _enqueue(self, event: events.Enqueued) -> None:
        pool = self.pool
        if event.request in pool.tickets:
            return
        ticket = _ticket(event, pool.num_arrivals, self._prices)
        pool.num_arrivals += 1
        self._change_tenant(event.tenant, event.terms)
        refused = self._refusal(ticket, event.terms)
        if refused is not None:
            reason, retry_after_s = refused
            pool.effects.append(
                events.Refused(event.now, event.request, event.tenant, reason, retry_after_s)
            )
            return
        account = pool.ledger.open(event.tenant, event.terms)
        pool.tickets[event.request] = ticket
        pool.wait(account, ticket)
        pool.changed(account)

    def _refusal(
        self, ticket: Ticket, terms: TenantTerms
    ) -> tuple[RefusalReason, float | None] | None:
        """Why the request is not queued, and when to try again if that can be said."""
        reason = _over_limit(ticket, terms) or self._misplaced(ticket)
        if reason is not None:
            return reason, None
        retry_after_s = self.pool.policy.refuses(self.pool.now, ticket.tenant)
        if retry_after_s is not None:
            return RefusalReason.RATE, retry_after_s
        beyond = self.predicted_wait_s(ticket.tenant) - self.pool.config.ttl_s
        if beyond > 0:
            return RefusalReason.PREDICTED_WAIT, max(LEAST_RETRY_S, beyond)
        return None

    def _correct(self, event: events.Corrected) -> None:
        ticket = self._in_flight(event.request)
        if ticket is None or ticket.charged is None:
            return
        account = self.pool.account(ticket)
        if not ticket.corrected:
            account.uncharged_tokens += max(0, event.prompt_tokens - ticket.prompt_tokens)
        tokens = min(event.prompt_tokens, ticket.prompt_tokens)
        cost = prompt_cost(self._prices, tokens, min(event.cached_tokens, tokens))
        before = ticket.refundable
        if before and cost < ticket.charged:
            self.pool.charge(account, ticket, cost - ticket.charged)
            ticket.charged = cost
        ticket.corrected = True
        account.unsettled += ticket.refundable - before
        self.pool.resize(ticket, event.prompt_tokens, ticket.output_tokens)
        self.pool.changed(account)

    def _emit(self, request: RequestId, output_tokens: int) -> None:
        ticket = self._in_flight(request)
        if ticket is None:
            return
        known = ticket.output_tokens
        fresh = min(output_tokens, ticket.output_limit) - known
        if fresh <= 0:
            return
        account = self.pool.account(ticket)
        before = ticket.refundable
        cost = output_cost(self._prices, fresh)
        self.pool.charge(account, ticket, cost)
        account.open_output -= cost
        self.pool.resize(ticket, ticket.kv_prompt_tokens, known + fresh)
        account.unsettled += ticket.refundable - before
        self.pool.policy.emitted(account, ticket, known)
        self.pool.changed(account)

    def _finish(self, request: RequestId, output_tokens: int) -> None:
        ticket = self._in_flight(request)
        if ticket is None:
            return
        account = self.pool.account(ticket)
        account.uncharged_tokens += max(0, output_tokens - ticket.output_limit)
        if ticket.output_tokens:
            account.note_output(ticket.output_tokens, ticket.sequences)
        self.pool.land(account, ticket)
        self.pool.end(account, ticket)

    def _refund_unstarted(self, request: RequestId) -> None:
        ticket = self._in_flight(request)
        if ticket is None:
            return
        account = self.pool.account(ticket)
        if not ticket.output_tokens:
            self.pool.charge(account, ticket, -(ticket.charged or 0))
        self.pool.land(account, ticket)
        self.pool.end(account, ticket)

    def _requeue(self, request: RequestId) -> None:
        ticket = self._in_flight(request)
        if ticket is not None and not ticket.output_tokens:
            self.pool.land_and_wait(ticket)
            if (reason := self._misplaced(ticket)) is not None:  # its true prompt may be longer
                self._refuse(ticket, reason)

    def _cancel(self, request: RequestId) -> None:
        ticket = self.pool.tickets.get(request)
        if ticket is not None and (ticket.stamp or ticket is self.pool.pinned):
            self.pool.withdraw(ticket)

    # --- tenants and replicas ------------------------------------------------------------------

    def _change_tenant(self, tenant: TenantId, terms: TenantTerms) -> None:
        pool = self.pool
        account = pool.ledger.accounts.get(tenant)
        if account is None or account.terms == terms:
            return
        pool.ledger.set_terms(account, terms)
        pool.changes.note(account)
        mine = pool.first_waiting(account, account.num_waiting)
        if pool.pinned is not None and pool.pinned.tenant == tenant:
            mine = sorted([pool.pinned, *mine], key=_queue_order)
        for ticket in mine:
            if ticket.sequences > terms.concurrency:
                self._refuse(ticket, RefusalReason.CONCURRENCY)
        pool.changed(account)

    def _raise_replica(self, name: ReplicaId, capacity: ReplicaCapacity) -> None:
        replica = self.pool.replicas.get(name)
        if replica is None:
            self.pool.replicas[name] = Replica(name, capacity)
        elif replica.accepting and replica.capacity == capacity:
            return
        else:
            replica.accepting = True
            replica.set_capacity(capacity)
        self._recount_credit()

    def _drain_replica(self, name: ReplicaId) -> None:
        replica = self.pool.replicas.get(name)
        if replica is not None:
            replica.accepting = False
            self._recount_credit()

    def _lose_replica(self, name: ReplicaId) -> None:
        pool = self.pool
        replica = pool.replicas.pop(name, None)
        if replica is not None:
            self._require_pin()
            for ticket in sorted(replica.held.values(), key=_arrival):
                if not ticket.output_tokens:
                    pool.land_and_wait(ticket)
            self._recount_credit()

    def _restart(self) -> None:
        """Everything of the last incarnation ends: what was begun stays charged."""
        pool = self.pool
        for ticket in sorted(pool.tickets.values(), key=_arrival):
            account = pool.account(ticket)
            if not ticket.output_tokens:
                pool.charge(account, ticket, -(ticket.charged or 0))
            if ticket.stamp:
                pool.leave_queue(account, ticket)
            else:
                pool.land(account, ticket)
            account.unsettled -= ticket.refundable
        pool.tickets.clear()
        pool.replicas.clear()
        pool.prefixes.clear()
        pool.rates.window = None
        pool.ledger.set_credit(0)
        for account in tuple(pool.ledger.accounts.values()):
            pool.changed(account)

    # --- bookkeeping ---------------------------------------------------------------------------

    def _in_flight(self, request: RequestId) -> Ticket | None:
        ticket = self.pool.tickets.get(request)
        return None if ticket is None or ticket.replica is None else ticket

    def _refuse(self, ticket: Ticket, reason: RefusalReason) -> None:
        pool = self.pool
        pool.withdraw(ticket)
        pool.effects.append(events.Refused(pool.now, ticket.request, ticket.tenant, reason))

    def _recount_credit(self) -> None:
        """Capacity changed: recount N's pool part, refuse what no replica could ever hold now."""
        pool = self.pool
        pool.changes.note_all()
        self._require_pin()
        lookahead = pool.config.lookahead
        pool.ledger.set_credit(
            sum(replica.capacity.slots + lookahead for replica in pool.replicas.values())
        )
        for ticket in tuple(pool.tickets.values()):
            if ticket.stamp and (reason := self._misplaced(ticket)):
                self._refuse(ticket, reason)

    def _require_pin(self) -> None:
        """A pinned request whose replica cannot take it any more waits again."""
        pool, ticket = self.pool, self.pool.pinned
        if ticket is None:
            return
        replica = pool.replicas.get(ticket.pinned_to or "")
        if replica is None or not replica.accepting or not replica.could_hold(ticket, pool.config):
            pool.effects.append(events.Unpinned(pool.now, ticket.request, ticket.tenant))
            pool.land_and_wait(ticket)

    def _misplaced(self, ticket: Ticket) -> RefusalReason | None:
        """Why no replica that accepts could hold it even when empty; with none up it may wait."""
        accepting = [replica for replica in self.pool.replicas.values() if replica.accepting]
        if not accepting or any(r.could_hold(ticket, self.pool.config) for r in accepting):
            return None
        return RefusalReason.NO_REPLICA_FITS


def _ticket(event: events.Enqueued, arrival: int, prices: Prices) -> Ticket:
    return Ticket(
        request=event.request,
        tenant=event.tenant,
        arrival=arrival,
        enqueued_at=event.now,
        prompt_tokens=event.prompt_tokens,
        max_output_tokens=event.max_output_tokens,
        sequences=event.sequences,
        affinity=event.affinity,
        prefix=event.prefix,
        kv_prompt_tokens=event.prompt_tokens,
        prompt_milli=prompt_cost(prices, event.prompt_tokens),
        output_limit=event.sequences * event.max_output_tokens,
    )


def _over_limit(ticket: Ticket, terms: TenantTerms) -> RefusalReason | None:
    if ticket.prompt_tokens > terms.max_prompt_tokens:
        return RefusalReason.PROMPT_LIMIT
    if ticket.max_output_tokens > terms.max_output_tokens:
        return RefusalReason.OUTPUT_LIMIT
    if ticket.sequences > terms.concurrency:
        return RefusalReason.CONCURRENCY
    return None


def _queue_order(ticket: Ticket) -> tuple[bool, int]:
    return ticket.charged is None, ticket.arrival


def _arrival(ticket: Ticket) -> int:
    return ticket.arrival
