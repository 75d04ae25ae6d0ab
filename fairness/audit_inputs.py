"""What each input of a log does to the audit's book, before anything is granted.

As docs/fairness.md says it: who is charged what, what comes back, who waits again. Whether a
request is refused, and whether a pin is given up, depends on room for its KV; that is read from the
effects in hand, and the replay says whether it is right.
"""

from collections.abc import Sequence

from fairness import events
from fairness.audit_accounts import Replica, Request
from fairness.audit_book import Book
from fairness.events import Effect, Headed, Refused, Unpinned
from fairness.types import RefusalReason, TenantId, TenantTerms


def take(book: Book, event: events.Input, effects: Sequence[Effect]) -> None:
    """Time comes to the input's, and then the input; `effects` are those that the log has of it."""
    book.now = event.now
    book.rate = max((one.rate_milli for one in effects if isinstance(one, Headed)), default=0)
    for request in book.due():
        book.expect_expired(request)
    match event:
        case events.Enqueued():
            _enqueue(book, event, effects)
        case events.Corrected():
            _correct(book, event)
        case events.Emitted():
            _emit(book, event.request, event.output_tokens)
        case events.Finished():
            _emit(book, event.request, event.output_tokens)
            _finish(book, event.request)
        case events.NotStarted():
            _not_started(book, event.request)
        case events.Requeued():
            _requeue(book, event.request, effects)
        case events.Cancelled():
            _cancel(book, event.request)
        case _:
            _take_pool_event(book, event, effects)


def _take_pool_event(book: Book, event: events.PoolInput, effects: Sequence[Effect]) -> None:
    match event:
        case events.TenantChanged():
            _change_tenant(book, event.tenant, event.terms)
        case events.Restarted():
            _restart(book)
        case events.Ticked() | events.DegradedOn() | events.DegradedOff():
            pass
        case _:
            _change_replicas(book, event, effects)


def _enqueue(book: Book, event: events.Enqueued, effects: Sequence[Effect]) -> None:
    if event.request in book.requests:
        return
    arrival = book.arrivals
    book.arrivals += 1
    _change_tenant(book, event.tenant, event.terms)
    for effect in effects:
        if isinstance(effect, Refused) and effect.request == event.request:
            book.expected.append(effect)
            return
    request = Request(
        event.request,
        event.tenant,
        arrival,
        event.now,
        event.prompt_tokens,
        event.max_output_tokens,
        event.sequences,
    )
    tenant = book.open(event.tenant, event.terms)
    book.requests[event.request] = request
    book.queue(request)
    book.look(tenant)


def _flying(book: Book, name: str) -> Request | None:
    request = book.requests.get(name)
    return None if request is None or request.replica is None else request


def _correct(book: Book, event: events.Corrected) -> None:
    request = _flying(book, event.request)
    if request is None or request.charged is None:
        return
    tenant, prices = book.tenants[request.tenant], book.config.prices
    tokens = min(event.prompt_tokens, request.prompt_tokens)
    cached = min(event.cached_tokens, tokens)
    cost = prices.uncached * (tokens - cached) + prices.cached * cached
    before = request.refundable
    if before and cost < request.charged:
        book.charge(tenant, request, cost - request.charged)
        request.charged = cost
    request.corrected = True
    tenant.unsettled += request.refundable - before
    book.look(tenant)


def _emit(book: Book, name: str, output_tokens: int) -> None:
    request = _flying(book, name)
    if request is None:
        return
    fresh = min(output_tokens, request.output_limit) - request.output
    if fresh <= 0:
        return
    tenant = book.tenants[request.tenant]
    before, cost = request.refundable, book.config.prices.output * fresh
    book.charge(tenant, request, cost)
    tenant.open_output -= cost
    request.output += fresh
    tenant.unsettled += request.refundable - before
    book.look(tenant)


def _finish(book: Book, name: str) -> None:
    request = _flying(book, name)
    if request is not None:
        tenant = book.tenants[request.tenant]
        book.land(tenant, request)
        book.end(tenant, request)


def _not_started(book: Book, name: str) -> None:
    request = _flying(book, name)
    if request is not None:
        tenant = book.tenants[request.tenant]
        if not request.output:
            book.charge(tenant, request, -(request.charged or 0))
        book.land(tenant, request)
        book.end(tenant, request)


def _requeue(book: Book, name: str, effects: Sequence[Effect]) -> None:
    request = _flying(book, name)
    if request is not None and not request.output:
        book.wait_again(request)
        _refuse_waiting(book, effects)


def _cancel(book: Book, name: str) -> None:
    request = book.requests.get(name)
    if request is not None and (request.queued or request is book.pinned):
        book.withdraw(request)


def _change_tenant(book: Book, name: TenantId, terms: TenantTerms) -> None:
    tenant = book.tenants.get(name)
    if tenant is None or tenant.terms == terms:
        return
    book.set_terms(tenant, terms)
    mine = book.waiting(tenant)
    if book.pinned is not None and book.pinned.tenant == name:
        mine = sorted([book.pinned, *mine], key=lambda request: request.place)
    for request in mine:
        if request.sequences > terms.concurrency:
            reason = RefusalReason.CONCURRENCY
            book.expect_refused(Refused(book.now, request.request, name, reason))
    book.look(tenant)


def _change_replicas(book: Book, event: events.PoolInput, effects: Sequence[Effect]) -> None:
    """A replica came, changed, drains or is gone."""
    lost: list[Request] = []
    match event:
        case events.ReplicaUp():
            known = book.replicas.get(event.replica)
            if known is None:
                book.replicas[event.replica] = Replica(event.capacity)
            elif known.accepting and known.capacity == event.capacity:
                return
            else:
                known.accepting, known.capacity = True, event.capacity
        case events.ReplicaDrained():
            if event.replica not in book.replicas:
                return
            book.replicas[event.replica].accepting = False
        case events.ReplicaLost():
            gone = book.replicas.pop(event.replica, None)
            if gone is None:
                return
            lost = sorted(gone.held.values(), key=lambda request: request.arrival)
        case _:
            raise AssertionError(f"{event} is not about replicas")
    _settle_replicas(book, lost, effects)


def _settle_replicas(book: Book, lost: list[Request], effects: Sequence[Effect]) -> None:
    """Who has to wait again does; what can never be held now is refused."""
    if any(isinstance(effect, Unpinned) for effect in effects):
        book.expect_unpinned()
    for request in lost:
        if not request.output:
            book.wait_again(request)
    book.set_credit()
    _refuse_waiting(book, effects)


def _refuse_waiting(book: Book, effects: Sequence[Effect]) -> None:
    """What waits and can never be held ends, as the effects in hand say."""
    for effect in effects:
        if isinstance(effect, Refused):
            request = book.requests.get(effect.request)
            if request is not None and request.queued:
                book.expect_refused(effect)


def _restart(book: Book) -> None:
    """All of the last incarnation ends; what was begun stays charged."""
    for request in sorted(book.requests.values(), key=lambda one: one.arrival):
        tenant = book.tenants[request.tenant]
        if not request.output:
            book.charge(tenant, request, -(request.charged or 0))
        if request.queued:
            book.unqueue(tenant, request)
        else:
            book.land(tenant, request)
        tenant.unsettled -= request.refundable
    book.requests.clear()
    book.replicas.clear()
    book.set_credit()
    for tenant in book.tenants.values():
        book.look(tenant)
