"""What the gateway counts on the hot path: plain numbers, read when somebody scrapes.

Labels come from closed sets or are capped; no prompt text, key or salt is ever one. Names are in
`engine.protocol.metrics`.
"""

import time

from engine.protocol import metrics as m
from engine.protocol.instruments import OTHER, LabelCap, Registry
from gateway.guard import RequestRecord
from gateway.metering import Outcome, Settlement
from gateway.ticket import Phase

CLIENT_GONE = "499"
NOT_A_MODEL = "none"


class GatewayMetrics:
    """The gateway's families; one per process."""

    def __init__(self, registry: Registry) -> None:
        self._cap = LabelCap()
        self._slugs: dict[str, str] = {}
        self._requests = registry.counter(*m.REQUESTS)
        self._duration = registry.histogram(*m.REQUEST_DURATION)
        self._first_token = registry.histogram(*m.TIME_TO_FIRST_TOKEN)
        self._inter_token = registry.histogram(*m.INTER_TOKEN_LATENCY)
        self._overhead = registry.histogram(*m.GATEWAY_OVERHEAD).labels()
        self._queue_wait = registry.histogram(*m.QUEUE_WAIT)
        self._rejections = registry.counter(*m.REJECTIONS)
        self._drops = registry.counter(*m.DROPS)
        self._passes = registry.counter(*m.PASSES)
        self._missed_deadlines = registry.counter(*m.MISSED_DEADLINES)
        self._log_sync = registry.histogram(*m.LOG_SYNC)
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

    def label_of(self, tenant_id: str) -> str:
        """The label of a tenant seen before, else `other`."""
        return self._slugs.get(tenant_id, OTHER)

    def name_of(self, tenant_id: str) -> str:
        """The slug of a tenant seen before, else its id: for operators, not for labels."""
        return self._slugs.get(tenant_id, tenant_id)

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

    def dropped(self, pool: str, reason: str) -> None:
        """The fair queue refused a request or gave it up."""
        self._drops.labels(pool, reason).inc()

    def passed(self, pool: str, reason: str) -> None:
        """A waiting request was passed."""
        self._passes.labels(pool, reason).inc()

    def missed_deadline(self, pool: str, reason: str) -> None:
        """A head was not granted by its deadline."""
        self._missed_deadlines.labels(pool, reason).inc()

    def log_synced(self, pool: str, seconds: float) -> None:
        """A pool's event log was brought to disk; called by the one thread that does it."""
        self._log_sync.labels(pool).observe(seconds)

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
