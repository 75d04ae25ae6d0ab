"""One trace per request: the HTTP span, its wait in the queue, and the call of the engine.

Ids travel to the engine even where no collector is configured and nothing is recorded.
"""

import secrets
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer, set_span_in_context

from engine.protocol import metrics as m
from engine.protocol.telemetry import extract, inject
from gateway.metering import Settlement


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
