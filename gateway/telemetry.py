"""What the gateway counts and traces: plain numbers on the hot path, read when somebody scrapes.

Labels come from closed sets or are capped; no prompt text, key or salt is ever one. Names are in
`engine.protocol.metrics`.
"""

import json
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from engine.protocol import metrics as m
from engine.protocol.instruments import LabelCap, Registry, Sample
from engine.protocol.telemetry import extract, inject
from fairness.metrics import PoolSnapshot
from gateway.guard import RequestRecord
from gateway.metering import Outcome, Settlement
from gateway.queue import Phase, PoolQueue, Ticket

MILLI = 1_000
CLIENT_GONE = "499"
NOT_A_MODEL = "none"


class GatewayMetrics:
    """The gateway's families; one per process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._cap = LabelCap()
        self._slugs: dict[str, str] = {}
        self._requests = registry.counter(*m.REQUESTS)
        self._duration = registry.histogram(*m.REQUEST_DURATION)
        self._first_token = registry.histogram(*m.TIME_TO_FIRST_TOKEN)
        self._inter_token = registry.histogram(*m.INTER_TOKEN_LATENCY)
        self._overhead = registry.histogram(*m.GATEWAY_OVERHEAD).labels()
        self._queue_wait = registry.histogram(*m.QUEUE_WAIT)
        self._rejections = registry.counter(*m.REJECTIONS)
        self._tokens = registry.counter(*m.TOKENS)
        self._disconnects = registry.counter(*m.DISCONNECTS)
        self._auth_failures = registry.counter(*m.AUTH_FAILURES)
        self._stripped = registry.counter(*m.STRIPPED_HEADERS)
        self._gen_ai_tokens = registry.histogram(*m.GEN_AI_TOKEN_USAGE)
        self._gen_ai_duration = registry.histogram(*m.GEN_AI_REQUEST_DURATION)
        self._gen_ai_first = registry.histogram(*m.GEN_AI_TIME_TO_FIRST_TOKEN)
        self._gen_ai_per_token = registry.histogram(*m.GEN_AI_TIME_PER_OUTPUT_TOKEN)

    # --- on the hot path ---------------------------------------------------------------------

    def tenant(self, tenant_id: str, slug: str) -> str:
        """The tenant's label, remembered for the pool's figures."""
        label = self._cap.label(slug)
        if label == slug:
            self._slugs[tenant_id] = slug
        return label

    def finished(self, record: RequestRecord) -> None:
        """An HTTP request of the public listener is over."""
        code = CLIENT_GONE if record.disconnected else str(record.status)
        self._requests.labels(record.tenant, record.model, record.route, code).inc()
        duration = time.perf_counter() - record.started
        self._duration.labels(record.model).observe(duration)
        if record.model != NOT_A_MODEL and record.status == 200:
            self._overhead.observe(max(0.0, duration - record.queue_s - record.upstream_s))

    def refused_by_protocol(self, status: int) -> None:
        """A request that never became one of the application's."""
        self._requests.labels("none", NOT_A_MODEL, "other", str(status)).inc()

    def waited(self, pool: str, outcome: str, seconds: float) -> None:
        """A wait in the queue ended."""
        self._queue_wait.labels(pool, outcome).observe(seconds)

    def rejected(self, dimension: str) -> None:
        """A limit refused a request."""
        self._rejections.labels(dimension).inc()

    def auth_failed(self, reason: str) -> None:
        """A request without a good key."""
        self._auth_failures.labels(reason).inc()

    def stripped(self, header: str) -> None:
        """An inbound identity header was taken off."""
        self._stripped.labels(header).inc()

    def first_token(self, tenant: str, model: str, operation: str, seconds: float) -> None:
        """The first output token arrived."""
        self._first_token.labels(tenant, model).observe(seconds)
        self._gen_ai_first.labels(operation, m.PROVIDER, model).observe(seconds)

    def between_tokens(self, model: str, seconds: float) -> None:
        """Further output tokens arrived."""
        self._inter_token.labels(model).observe(seconds)

    def settled(self, settlement: Settlement) -> None:
        """A request was settled."""
        row, exchange = settlement.row, settlement.exchange
        tenant = self._cap.label(exchange.context.tenant_slug)
        cached = row.cached_tokens or 0
        for kind, count in (
            ("uncached", row.prompt_tokens - cached),
            ("cached", cached),
            ("output", row.output_tokens),
        ):
            self._tokens.labels(tenant, row.model, kind).inc(count)
        if exchange.outcome is Outcome.CANCELLED:
            phase = settlement.phase
            self._disconnects.labels((Phase.WAITING if phase is Phase.OVER else phase).value).inc()
        self._gen_ai(settlement)

    def _gen_ai(self, settlement: Settlement) -> None:
        row, exchange = settlement.row, settlement.exchange
        common = (exchange.operation, m.PROVIDER, row.model)
        self._gen_ai_duration.labels(*common).observe(row.duration_s)
        self._gen_ai_tokens.labels(*common, "input").observe(row.prompt_tokens)
        self._gen_ai_tokens.labels(*common, "output").observe(row.output_tokens)
        first = exchange.first_token_at
        if first is not None and row.output_tokens > 1:
            spent = exchange.started + row.duration_s - first
            self._gen_ai_per_token.labels(*common).observe(spent / (row.output_tokens - 1))

    # --- when somebody reads -----------------------------------------------------------------

    def watch_pools(self, pools: Mapping[str, PoolQueue]) -> None:
        """Read the queues' figures from their snapshots at each collection."""
        registry = self._registry

        def per_tenant(
            value: Callable[[PoolSnapshot, str], Iterable[tuple[str, float]]],
        ) -> Callable[[], Iterator[Sample]]:
            def read() -> Iterator[Sample]:
                for pool, queue in pools.items():
                    sums: dict[str, float] = {}
                    for tenant, number in value(queue.snapshot(), pool):
                        label = self._slugs.get(tenant, "other")
                        sums[label] = sums.get(label, 0.0) + number
                    yield from (((pool, label), number) for label, number in sums.items())

            return read

        def per_pool(value: Callable[[PoolSnapshot], float]) -> Callable[[], Iterator[Sample]]:
            return lambda: (((pool,), value(queue.snapshot())) for pool, queue in pools.items())

        def bound_terms() -> Iterator[Sample]:
            for pool, queue in pools.items():
                bound = queue.snapshot().bound
                for term in ("jump", "refund", "floor_lag", "held_over"):
                    yield (pool, term), getattr(bound, term) / MILLI

        def inflight() -> Iterator[Sample]:
            for queue in pools.values():
                for replica in queue.snapshot().replicas:
                    yield (replica.replica,), replica.in_flight

        now = time.monotonic
        registry.gauge(*m.QUEUE_DEPTH).callback(
            per_tenant(lambda s, _: ((t.tenant, t.queued) for t in s.tenants))
        )
        registry.gauge(*m.HEAD_AGE).callback(
            per_tenant(
                lambda s, _: (
                    (t.tenant, now() - t.head_enqueued_at)
                    for t in s.tenants
                    if t.head_enqueued_at is not None
                )
            )
        )
        registry.gauge(*m.VTC_COUNTER).callback(
            per_tenant(lambda s, _: ((t.tenant, t.counter / MILLI) for t in s.tenants))
        )
        registry.counter(*m.SERVICE_UNITS).callback(
            per_tenant(lambda _, pool: pools[pool].service_by_tenant())
        )
        registry.gauge(*m.SERVICE_SPREAD).callback(per_pool(lambda s: s.spread / MILLI))
        registry.gauge(*m.SERVICE_SPREAD_BOUND).callback(per_pool(lambda s: s.spread_bound / MILLI))
        registry.gauge(*m.SERVICE_SPREAD_BOUND_TERM).callback(bound_terms)
        registry.gauge(*m.JAIN_INDEX).callback(per_pool(lambda s: s.jain))
        registry.gauge(*m.REPLICA_INFLIGHT).callback(inflight)

    def watch_process(
        self,
        *,
        revision: Callable[[], int],
        store_up: Callable[[], bool],
        replicas_up: Callable[[], Iterable[tuple[str, bool]]],
    ) -> None:
        """Read the process's own state at each collection."""
        registry = self._registry
        registry.gauge(*m.CONFIG_VERSION).callback(lambda: [((), revision())])
        registry.gauge(*m.STORE_UP).callback(lambda: [(("database",), float(store_up()))])
        registry.gauge(*m.REPLICA_UP).callback(
            lambda: (((name,), float(up)) for name, up in replicas_up())
        )


@dataclass(slots=True)
class RequestTrace:
    """The spans of one request; the ids exist and travel even where nothing records them."""

    tracer: Tracer
    server: Span
    queue: Span | None = None
    upstream: Span | None = None

    @classmethod
    def start(cls, tracer: Tracer, name: str, headers: list[tuple[bytes, bytes]]) -> "RequestTrace":
        """The server span, under the caller's trace when it sent one."""
        found = {
            key.decode(): value.decode("latin-1")
            for key, value in headers
            if key in {b"traceparent", b"tracestate"}
        }
        parent = extract(found) if found else Context()
        return cls(tracer, tracer.start_span(name, parent, SpanKind.SERVER))

    def enter_queue(self) -> None:
        """The request waits from now on."""
        self.queue = self._child("queue", SpanKind.INTERNAL)

    def leave_queue(self, model: str, operation: str) -> None:
        """The request was granted: its wait ends and the call of the engine begins."""
        self._end(self.queue)
        self.queue = None
        self._end(self.upstream)
        self.upstream = self._child(f"{operation} {model}", SpanKind.CLIENT)
        self.upstream.set_attributes(
            {m.OPERATION_NAME: operation, m.PROVIDER_NAME: m.PROVIDER, m.REQUEST_MODEL: model}
        )

    def headers(self) -> dict[str, str]:
        """W3C trace context for the engine."""
        span = self.upstream or self.server
        if span.get_span_context().is_valid:
            return inject(span)
        return {"traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"}

    def settled(self, settlement: Settlement) -> None:
        """Say what was used; numbers only."""
        row = settlement.row
        span = self.upstream or self.server
        span.set_attributes(
            {
                m.RESPONSE_ID: row.request_id,
                m.RESPONSE_FINISH_REASONS: (row.outcome,),
                m.USAGE_INPUT_TOKENS: row.prompt_tokens,
                m.USAGE_OUTPUT_TOKENS: row.output_tokens,
                m.USAGE_CACHED_TOKENS: row.cached_tokens or 0,
            }
        )
        self._end(self.queue)
        self._end(self.upstream)
        self.queue = self.upstream = None

    def end(self, status: int) -> None:
        """The request is over."""
        self.server.set_attribute("http.response.status_code", status)
        self._end(self.queue)
        self._end(self.upstream)
        self.server.end()

    def _child(self, name: str, kind: SpanKind) -> Span:
        return self.tracer.start_span(name, set_span_in_context(self.server, Context()), kind)

    @staticmethod
    def _end(span: Span | None) -> None:
        if span is not None:
            span.end()


# --- logs ---------------------------------------------------------------------------------------


class JsonFormatter(logging.Formatter):
    """One JSON object per line; an exception shows as types and places, never its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger and message."""
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry["exception"] = where_of(record)
        return json.dumps(entry)


class TextFormatter(logging.Formatter):
    """For people; an exception shows as types and places, never its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        """Types and places only."""
        return _places(ei)


def where_of(record: logging.LogRecord) -> str:
    """Types and places of a record's exception."""
    return _places(record.exc_info)


def _places(info: object) -> str:
    from gateway.guard import where

    error = info[1] if isinstance(info, tuple) else None
    return where(error) if isinstance(error, BaseException) else ""


def configure_logging(log_format: str) -> None:
    """Log to standard error; uvicorn's loggers too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
