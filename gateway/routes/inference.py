"""`POST /v1/chat/completions` and `/v1/completions`: the ten hops of one request, in order.

Raw ASGI: the disconnect of a client must reach whatever the request waits for, and a framework's
request object would hide it. Response headers are held until the engine has begun, so that every
refusal keeps its own status.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from engine.protocol import shapes, sse
from engine.protocol.errors import InvalidRequest
from gateway.active import ActiveRequests
from gateway.admission import Admitted, Route, Tokenizers, admit
from gateway.auth import Authenticator
from gateway.beginnings import beginnings
from gateway.engines.port import EngineEvent
from gateway.engines.request import CacheIdentity
from gateway.errors import (
    Answer,
    GatewayError,
    Headers,
    LimitExceeded,
    LogUnavailable,
    NoHealthyUpstream,
    Overloaded,
    PredictedWait,
    QueueTimeout,
    ShuttingDown,
    UpstreamTimeout,
    answer,
    body_of,
)
from gateway.guard import (
    ClientGone,
    Receive,
    RequestRecord,
    Scope,
    Send,
    read_body,
    respond,
)
from gateway.interrupt import ClientWatch
from gateway.metering import Exchange, Meter, Outcome
from gateway.pool import Pool
from gateway.quotas import Quotas
from gateway.routes.dialects import Dialect
from gateway.routes.reply import Reply
from gateway.streaming import Relay
from gateway.telemetry import GatewayMetrics
from gateway.tracing import RequestTrace
from tenancy.entities import TenantContext

JSON: Final = [(b"content-type", b"application/json")]
SSE_HEADERS: Final = [
    (b"content-type", sse.CONTENT_TYPE.encode()),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(slots=True)
class Service:
    """What every inference request needs; made once by the composition root."""

    auth: Authenticator
    tokenizers: Tokenizers
    quotas: Quotas
    pools: dict[str, Pool]
    meter: Meter
    metrics: GatewayMetrics
    start_trace: Callable[[str, list[tuple[bytes, bytes]]], RequestTrace]
    cache_identity: Callable[[TenantContext, Admitted, str], CacheIdentity]
    router_key: bytes
    max_body_bytes: int
    active: ActiveRequests


class Inference:
    """One of the two routes."""

    def __init__(self, service: Service, route: Route, dialect: Dialect) -> None:
        self._service = service
        self._route = route
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises what `Guard` answers; a stream that began ends here."""
        record: RequestRecord = scope["state"]["record"]
        record.route = self._route.name
        trace = self._service.start_trace(f"POST {self._route.name}", scope["headers"])
        try:
            await self._serve(record, trace, scope, receive, send)
        finally:
            trace.end(record.status)

    async def _serve(
        self, record: RequestRecord, trace: RequestTrace, scope: Scope, receive: Receive, send: Send
    ) -> None:
        service = self._service
        context = await service.auth.authenticate(scope["headers"])
        record.tenant = service.metrics.tenant(str(context.tenant_id), context.tenant_slug)
        self._require_open()
        body = await read_body(scope, receive, service.max_body_bytes)
        prepared = await service.tokenizers.prepare(context.tenant_id, self._route, body)
        if context.revision < service.auth.revision:  # a slow body outlives no revocation
            context = await service.auth.authenticate(scope["headers"])
        self._require_open()
        record.model = prepared.model
        pool = service.pools[prepared.model]
        _require_recorded(pool)
        admitted = admit(
            prepared,
            context,
            context_length=pool.context_length,
            prompt_param=self._route.prompt_param,
            fits=pool.queue.fits_some_replica,
        )
        cache = service.cache_identity(context, admitted, record.request_id)
        handler = _Handler(
            service=service,
            dialect=self._dialect,
            exchange=self._exchange(record, context, admitted, pool, cache),
            pool=pool,
            cache=cache,
            trace=trace,
            record=record,
        )
        # From here on the handler settles: nothing may come between the two.
        try:
            service.quotas.reserve(record.request_id, context, admitted)
        except LimitExceeded as refusal:
            service.metrics.rejected(refusal.dimension)
            await respond(send, _refusal(refusal, service.quotas, context))
            return
        await handler.run(receive, send)

    def _require_open(self) -> None:
        if self._service.active.draining:
            raise ShuttingDown("The server is shutting down.", retry_after_s=1.0)
        if self._service.meter.full:
            raise Overloaded("Usage cannot be recorded right now.", retry_after_s=5.0)

    def _exchange(
        self,
        record: RequestRecord,
        context: TenantContext,
        admitted: Admitted,
        pool: Pool,
        cache: CacheIdentity,
    ) -> Exchange:
        prompt = admitted.prepared.prompt
        prefix = beginnings(self._service.router_key, cache, prompt)
        ticket = pool.queue.ticket(
            record.request_id,
            context.tenant_id,
            admitted.terms,
            prompt_tokens=len(prompt),
            max_output_tokens=admitted.max_tokens,
            sequences=admitted.prepared.sampling.n,
            prompt_param=self._route.prompt_param,
            affinity=prefix[0] if prefix else 0,
            prefix=prefix,
        )
        return Exchange(
            request_id=record.request_id,
            route=self._route.name,
            operation=self._route.operation,
            context=context,
            admitted=admitted,
            queue=pool.queue,
            ticket=ticket,
            started=record.started,
        )


class _Handler:
    """One reserved request: from its place in the queue to its settlement."""

    def __init__(
        self,
        *,
        service: Service,
        dialect: Dialect,
        exchange: Exchange,
        pool: Pool,
        cache: CacheIdentity,
        trace: RequestTrace,
        record: RequestRecord,
    ) -> None:
        self._service = service
        self._exchange = exchange
        self._pool = pool
        self._trace = trace
        self._record = record
        self._last_token_at: dict[int, float] = {}
        self._noted_tokens = 0
        prepared = exchange.admitted.prepared
        self._delivery = prepared.delivery
        head = shapes.Head(
            dialect.id_prefix + exchange.request_id.removeprefix("req_"),
            int(time.time()),
            prepared.model,
        )
        self._reply = Reply(dialect, head, prepared.sampling, pool.spelling, prepared.prompt)
        self._relay = Relay(
            exchange,
            pool.upstreams,
            cache,
            on_granted=self._granted,
            headers=self._upstream_headers,
        )

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer, and settle on every path."""
        request_id = self._exchange.request_id
        outcome = Outcome.ERROR
        try:
            async with ClientWatch(receive) as watch:
                self._service.active.add(request_id, watch)
                self._trace.enter_queue()
                self._pool.queue.enqueue(self._exchange.ticket)
                events = await self._relay.first()
                await self._answer(send, events)
        except ClientGone:
            self._record.disconnected = True
            outcome = Outcome.CANCELLED
            await self._relay.abandon()
        except (GatewayError, InvalidRequest) as error:
            outcome = _outcome_of(error)
            await self._relay.abandon()
            self._settle(outcome)
            await self._fail(send, error)
        else:
            await self._relay.finish()
        finally:
            self._relay.close()
            self._settle(outcome)
            self._service.active.discard(request_id)

    async def _answer(self, send: Send, events: list[EngineEvent]) -> None:
        self._note(events)
        if self._delivery.stream:
            await self._stream(send, events)
        else:
            await self._whole(send, events)

    # --- answers -----------------------------------------------------------------------------

    async def _whole(self, send: Send, events: list[EngineEvent]) -> None:
        while events:
            for event in events:
                self._reply.take(event)
            events = await self._next()
        self._end()
        body = self._reply.whole(self._usage())
        await respond(send, Answer(200, body, JSON + self._limit_headers()))

    async def _stream(self, send: Send, events: list[EngineEvent]) -> None:
        pending = None if self._delivery.include_usage else shapes.OMIT
        headers = SSE_HEADERS + self._limit_headers()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        parts = self._reply.opening(pending)
        while events:
            for event in events:
                parts += self._reply.deltas(event, pending)
            if parts and not self._relay.ended:
                await send(
                    {"type": "http.response.body", "body": b"".join(parts), "more_body": True}
                )
                parts = []
            events = await self._next()
        self._end()
        if self._delivery.include_usage:
            parts.append(self._reply.closing(self._usage()))
        parts.append(sse.DONE)
        await send({"type": "http.response.body", "body": b"".join(parts), "more_body": False})

    async def _fail(self, send: Send, error: GatewayError | InvalidRequest) -> None:
        """An error object as the whole answer, or as a begun stream's last event."""
        if not self._record.status:
            exchange = self._exchange
            await respond(send, _refusal(error, self._service.quotas, exchange.context))
            return
        await send(
            {"type": "http.response.body", "body": sse.encode(body_of(error)), "more_body": False}
        )

    # --- bookkeeping -------------------------------------------------------------------------

    async def _next(self) -> list[EngineEvent]:
        events = await self._relay.next()
        self._note(events)
        return events

    def _note(self, events: list[EngineEvent]) -> None:
        """Times of the first token, and between the tokens of each choice."""
        exchange, metrics, model = self._exchange, self._service.metrics, self._record.model
        grown = self._grown(events)
        if not grown:
            return
        now = time.perf_counter()
        if exchange.first_token_at is None:
            exchange.first_token_at = now
            waited_s = now - exchange.started
            metrics.first_token(self._record.tenant, model, exchange.operation, waited_s)
        for index in grown:
            if (last := self._last_token_at.get(index)) is not None:
                metrics.between_tokens(model, now - last)
            self._last_token_at[index] = now

    def _grown(self, events: list[EngineEvent]) -> set[int]:
        """The choices that have more tokens than before."""
        grown = set()
        for event in events:
            if event.index is not None and (event.output_tokens or 0) > self._noted_tokens:
                self._noted_tokens = event.output_tokens or 0
                grown.add(event.index)
        return grown

    def _end(self) -> None:
        """The engine is done: settle before the client can see the end."""
        cut = "length" in self._relay.finish_reasons.values()
        self._settle(Outcome.LENGTH if cut else Outcome.STOP)

    def _settle(self, outcome: Outcome) -> None:
        settlement = self._service.meter.settle(self._exchange, outcome)
        if settlement is not None:
            self._record.queue_s = settlement.row.queue_s
            self._record.upstream_s = self._exchange.upstream_s
            self._trace.settled(settlement)

    def _usage(self) -> shapes.JsonObject:
        exchange = self._exchange
        return shapes.usage(exchange.prompt_tokens, exchange.output_tokens, exchange.cached_tokens)

    def _limit_headers(self) -> Headers:
        return self._service.quotas.headers(self._exchange.context)

    def _granted(self) -> None:
        self._trace.leave_queue(self._record.model, self._exchange.operation)

    def _upstream_headers(self) -> dict[str, str]:
        return {"X-Request-Id": self._exchange.request_id, **self._trace.headers()}


def _refusal(
    error: GatewayError | InvalidRequest, quotas: Quotas, context: TenantContext
) -> Answer:
    """The answer to a refused request; a 429 says what its tenant has left."""
    reply = answer(error)
    if reply.status != 429:
        return reply
    return Answer(reply.status, reply.body, reply.headers + quotas.headers(context))


def _require_recorded(pool: Pool) -> None:
    if pool.unrecorded is not None:
        raise LogUnavailable("Grants cannot be recorded right now.", retry_after_s=5.0)


def _outcome_of(error: GatewayError | InvalidRequest) -> Outcome:
    if isinstance(error, UpstreamTimeout):
        return Outcome.TIMEOUT
    if isinstance(error, QueueTimeout | PredictedWait | NoHealthyUpstream):
        return Outcome.EXPIRED
    return Outcome.ERROR
