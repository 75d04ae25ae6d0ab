"""The shell round one pool's `Dispatcher`: it alone feeds it events, on the event loop.

Every request in the pool is a `Ticket`, owned by its handler until `close`. Effects wake handlers:
a grant resolves the ticket's future, an expiry fails it. A pinned request is charged and still
waits, until it is dispatched. Emitted tokens are charged in batches of `flush_interval_s`; what is
left is charged by `Finished`, before the credit returns.
"""

import asyncio
from collections.abc import Callable, Iterator
from uuid import UUID

from engine.protocol.errors import InvalidRequest
from fairness.dispatcher import Dispatcher
from fairness.events import (
    Cancelled,
    Corrected,
    DegradedOff,
    DegradedOn,
    Dispatched,
    Effect,
    Emitted,
    Enqueued,
    Expired,
    Finished,
    Forgotten,
    Granted,
    Input,
    NotStarted,
    Refused,
    ReplicaDrained,
    ReplicaLost,
    ReplicaUp,
    Requeued,
    TenantChanged,
    Ticked,
)
from fairness.metrics import PoolSnapshot
from fairness.types import ReplicaCapacity, ReplicaId, TenantTerms
from gateway import drops
from gateway.clock import pool_clock
from gateway.errors import GatewayError
from gateway.ticket import Phase, Ticket

TICK_S = 0.25


class PoolQueue:
    """All requests of one pool; made and used on one event loop.

    `applied` sees every event with its effects, before they are acted on. It, `on_granted` and
    `on_waited` (how a wait ended, and its seconds) must not call back. `missing` are the reasons
    for which the pool is degraded now.
    """

    def __init__(
        self,
        pool: str,
        dispatcher: Dispatcher,
        *,
        flush_interval_s: float,
        on_granted: Callable[[str], None] = lambda _request: None,
        on_waited: Callable[[str, float], None] = lambda _outcome, _seconds: None,
        applied: Callable[[Input, tuple[Effect, ...]], None] = lambda _event, _effects: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.pool = pool
        self._dispatcher = dispatcher
        self._flush_interval_s = flush_interval_s
        self._on_granted = on_granted
        self._on_waited = on_waited
        self._applied = applied
        self._clock = clock or pool_clock()
        self._tickets: dict[str, Ticket] = {}
        self._dirty: set[Ticket] = set()
        self._flush: asyncio.TimerHandle | None = None
        self._replicas: dict[ReplicaId, ReplicaCapacity] = {}
        self._forgotten_milli: dict[str, int] = {}
        self._service_milli: dict[str, int] = {}
        self._snapshot: PoolSnapshot | None = None
        self._num_applied = 0
        self.missing: set[str] = set()

    # --- a request's life --------------------------------------------------------------------

    def enqueue(self, ticket: Ticket) -> None:
        """Put a request in its tenant's queue; it may be granted before this returns."""
        ticket.enqueued_at = self._clock()
        self._tickets[ticket.request_id] = ticket
        self._apply(
            Enqueued(
                now=ticket.enqueued_at,
                request=ticket.request_id,
                tenant=str(ticket.tenant_id),
                terms=ticket.terms,
                prompt_tokens=ticket.prompt_tokens,
                max_output_tokens=ticket.max_output_tokens,
                sequences=ticket.sequences,
                affinity=ticket.affinity,
                prefix=ticket.prefix,
            )
        )

    def ticket(
        self,
        request_id: str,
        tenant_id: UUID,
        terms: TenantTerms,
        *,
        prompt_tokens: int,
        max_output_tokens: int,
        sequences: int,
        prompt_param: str,
        affinity: int = 0,
        prefix: tuple[int, ...] = (),
    ) -> Ticket:
        """A ticket for `enqueue`, stamped with the queue's clock; the output is per sequence."""
        return Ticket(
            request_id=request_id,
            tenant_id=tenant_id,
            terms=terms,
            prompt_tokens=prompt_tokens,
            max_output_tokens=max_output_tokens,
            sequences=sequences,
            affinity=affinity,
            prefix=prefix,
            prompt_param=prompt_param,
            enqueued_at=self._clock(),
            granted=asyncio.get_running_loop().create_future(),
        )

    def begun(self, ticket: Ticket) -> None:
        """The engine admitted the request: what it does from here on cannot be done elsewhere."""
        if ticket.phase is Phase.GRANTED:
            ticket.phase = Phase.BEGUN

    def cached(self, ticket: Ticket, cached_tokens: int) -> None:
        """The engine said how much of a begun request's prompt it had: once, however late."""
        if ticket.phase is Phase.BEGUN:
            self._apply(
                Corrected(self._clock(), ticket.request_id, ticket.prompt_tokens, cached_tokens)
            )

    def emitted(self, ticket: Ticket, output_tokens: int) -> None:
        """The engine's count so far; charged with the next flush."""
        if output_tokens <= ticket.output_tokens:
            return
        ticket.output_tokens = output_tokens
        self._dirty.add(ticket)
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(self._flush_interval_s, self._flush_emitted)

    def requeue(self, ticket: Ticket) -> None:
        """A granted request that no engine began goes back to the head of its queue."""
        if ticket.phase is Phase.GRANTED:
            self._wait_again(ticket)
            self._apply(Requeued(self._clock(), ticket.request_id))

    def close(self, ticket: Ticket, *, refund: bool = False) -> None:
        """The request is over, however it ended; idempotent. Its credit returns here.

        `refund`: it failed without a token and without its tenant's doing, and costs nothing.
        """
        phase, ticket.phase = ticket.phase, Phase.OVER
        if phase is Phase.OVER:
            return
        now = self._clock()
        self._tickets.pop(ticket.request_id, None)
        self._dirty.discard(ticket)
        if not ticket.granted.done():
            ticket.granted.cancel()
        if phase is Phase.WAITING:
            self._on_waited("cancelled", now - ticket.enqueued_at)
            self._apply(Cancelled(now, ticket.request_id))
        elif refund or (phase is Phase.GRANTED and not ticket.sent):
            self._apply(NotStarted(now, ticket.request_id))
        else:
            self._apply(Finished(now, ticket.request_id, ticket.output_tokens))

    # --- the pool's own events ---------------------------------------------------------------

    def replica_up(self, replica: ReplicaId, capacity: ReplicaCapacity) -> None:
        """A replica answers; nothing happens when its capacity is what we knew."""
        if self._replicas.get(replica) != capacity:
            self._replicas[replica] = capacity
            self._apply(ReplicaUp(self._clock(), replica, capacity))

    def replica_lost(self, replica: ReplicaId) -> None:
        """Unstarted requests wait again under their charge; begun ones are interrupted."""
        if self._replicas.pop(replica, None) is None:
            return
        there = [t for t in self._tickets.values() if t.replica == replica]
        tell = [t.lost for t in there if t.lost is not None]
        now = self._clock()
        # No grant may go there while its begun requests, which will not be retried, are ended.
        self._apply(ReplicaDrained(now, replica))
        for ticket in there:
            if ticket.phase is Phase.BEGUN and ticket.output_tokens:
                self._apply(Finished(now, ticket.request_id, ticket.output_tokens))
            elif ticket.phase is Phase.BEGUN:
                self._apply(NotStarted(now, ticket.request_id))
            elif ticket.phase is Phase.GRANTED:
                self._wait_again(ticket)
        self._apply(ReplicaLost(now, replica))
        for lost in tell:
            lost()

    def tenant_changed(self, tenant_id: UUID, terms: TenantTerms) -> None:
        """New weight or limits, also for what already waits."""
        self._apply(TenantChanged(self._clock(), str(tenant_id), terms))

    def degraded(self, reason: str) -> None:
        """From here on something is missing that the promises rest on; idempotent."""
        if reason not in self.missing:
            self.missing.add(reason)
            self._apply(DegradedOn(self._clock(), reason))

    def restored(self, reason: str) -> None:
        """What was missing for `reason` is back; idempotent."""
        if reason in self.missing:
            self.missing.discard(reason)
            self._apply(DegradedOff(self._clock(), reason))

    def tick(self) -> None:
        """Time passed: requests expire, deadlines pass. It is no event while nobody waits."""
        if any(ticket.phase is Phase.WAITING for ticket in self._tickets.values()):
            self._apply(Ticked(self._clock()))

    async def run(self) -> None:
        """Tick for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    # --- what others may ask -----------------------------------------------------------------

    def snapshot(self) -> PoolSnapshot:
        """The dispatcher's own view, for metrics and administration: made once after an event.

        A thread that exports metrics may ask as well. What it sees in the middle of an event is not
        kept for others.
        """
        found, applied = self._snapshot, self._num_applied
        if found is None:
            self._snapshot = found = self._dispatcher.snapshot()
            if applied != self._num_applied:
                self._snapshot = None
        return found

    def service_by_tenant(self) -> Iterator[tuple[str, float]]:
        """Service units per tenant since the start; a refund never makes a figure fall."""
        current = dict(self._forgotten_milli)
        for tenant in self.snapshot().tenants:
            current[tenant.tenant] = current.get(tenant.tenant, 0) + tenant.service_milli
        for name, milli in current.items():
            self._service_milli[name] = max(milli, self._service_milli.get(name, 0))
        for name, milli in tuple(self._service_milli.items()):
            yield name, milli / 1_000

    def now(self) -> float:
        """The moment, on the clock of everything the queue says."""
        return self._clock()

    @property
    def replicas(self) -> dict[ReplicaId, ReplicaCapacity]:
        """Replicas that answer now."""
        return self._replicas

    def active_tenants(self) -> set[UUID]:
        """Tenants with a request in the pool."""
        return {ticket.tenant_id for ticket in self._tickets.values()}

    def fits_some_replica(self, tokens: int, sequences: int) -> bool:
        """Whether an empty replica could hold so many sequences of `tokens` each.

        True while no replica is known. Each sequence counts in full, as it does for credit.
        """
        if not self._replicas:
            return True
        return any(
            sequences <= c.slots and sequences * _blocks(tokens, c) <= c.kv_tokens
            for c in self._replicas.values()
        )

    # --- inside ------------------------------------------------------------------------------

    def _apply(self, event: Input) -> None:
        effects = self._dispatcher.apply(event)
        self._num_applied += 1
        self._snapshot = None
        self._applied(event, effects)
        for effect in effects:
            self._handle(effect)

    def _handle(self, effect: Effect) -> None:
        match effect:
            case Granted(request=request) | Dispatched(request=request):
                self._granted(self._tickets[request], effect.replica, effect.now)
            case Expired(request=request):
                # Time is looked at first: the event that closes a request may expire it.
                if (late := self._tickets.get(request)) is not None:
                    wait_s = self._dispatcher.predicted_wait_s(effect.tenant)
                    self._fail(late, drops.expiry(effect, wait_s), "expired")
            case Refused(request=request):
                ticket = self._tickets[request]
                self._fail(ticket, drops.refusal(effect, ticket), "refused")
            case Forgotten(tenant=tenant, service_milli=service):
                known = self._forgotten_milli.get(tenant, 0)
                self._forgotten_milli[tenant] = known + service
            case _:
                pass  # the request waits on: `applied` counts it, the snapshot shows it

    def _granted(self, ticket: Ticket, replica: ReplicaId, now: float) -> None:
        ticket.phase = Phase.GRANTED
        ticket.replica = replica
        ticket.sent = False
        if ticket.granted_at is None:
            ticket.granted_at = now
            self._on_waited("granted", now - ticket.enqueued_at)
        self._on_granted(ticket.request_id)
        if not ticket.granted.done():  # else its handler was interrupted, and will close it
            ticket.granted.set_result(replica)

    def _fail(self, ticket: Ticket, error: GatewayError | InvalidRequest, outcome: str) -> None:
        """The dispatcher has already let go of the request."""
        ticket.phase = Phase.OVER
        self._tickets.pop(ticket.request_id, None)
        self._on_waited(outcome, self._clock() - ticket.enqueued_at)
        if not ticket.granted.done():
            ticket.granted.set_exception(error)

    @staticmethod
    def _wait_again(ticket: Ticket) -> None:
        ticket.phase = Phase.WAITING
        ticket.replica = None
        ticket.lost = None
        ticket.granted = ticket.granted.get_loop().create_future()

    def _flush_emitted(self) -> None:
        self._flush = None
        dirty, self._dirty = self._dirty, set()
        now = self._clock()
        for ticket in sorted(dirty, key=lambda t: t.request_id):
            self._apply(Emitted(now, ticket.request_id, ticket.output_tokens))


def _blocks(tokens: int, capacity: ReplicaCapacity) -> int:
    """Tokens rounded up to whole blocks, as the engine holds them."""
    return -(-tokens // capacity.block_size) * capacity.block_size
