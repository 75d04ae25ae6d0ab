"""One process's telemetry: `/metrics` always, OTLP metrics and traces where the environment asks.

OTLP is configured by OpenTelemetry's own variables only (`OTEL_EXPORTER_OTLP_ENDPOINT` and its
like, over http/protobuf). Without them spans record nothing, yet a caller's trace id still
travels on. A collector that is down costs counted drops, never a request.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, time_ns
from typing import Final
from uuid import uuid4

from opentelemetry.context import Context
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider, ObservableCounter, ObservableGauge
from opentelemetry.sdk.metrics.export import (
    CardinalityLimits,
    MetricReader,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracer, Tracer, set_span_in_context
from opentelemetry.trace import Span as ApiSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, generate_latest

from engine.protocol.instruments import Counter, Registry
from engine.protocol.metrics import BUILD_INFO, TELEMETRY_DROPPED
from engine.protocol.otel_bridge import SCOPE, HistogramExporter, bind

PROMETHEUS_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_QUEUED_SPANS: Final = 2048
# The SDK folds series beyond 2,000 per instrument into one; labels are capped before they get here.
_NO_CARDINALITY_LIMIT: Final[CardinalityLimits] = {
    ObservableCounter: 1_000_000,
    ObservableGauge: 1_000_000,
}
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What our own configuration decides; where OTLP goes is the environment's business.

    `metric_interval_s` None leaves it to `OTEL_METRIC_EXPORT_INTERVAL` (60 s by default);
    `span_delay_s` None likewise to `OTEL_BSP_SCHEDULE_DELAY` (5 s).
    """

    version: str = "0"
    metric_interval_s: float | None = None
    span_delay_s: float | None = None
    shutdown_timeout_s: float = 5.0


class TelemetryError(ValueError):
    """The environment asks for telemetry that this build cannot do."""


class Telemetry:
    """What `setup` made. `tracer` starts spans; `prometheus_text` is the body of `/metrics`."""

    def __init__(
        self,
        tracer: Tracer,
        scrape: CollectorRegistry,
        meters: MeterProvider,
        traces: TracerProvider | None,
        shutdown_timeout_s: float,
    ) -> None:
        self.tracer = tracer
        self._scrape = scrape
        self._meters = meters
        self._traces = traces
        self._shutdown_timeout_s = shutdown_timeout_s

    def prometheus_text(self) -> bytes:
        """Every metric as it is now, in Prometheus' text format."""
        return generate_latest(self._scrape)

    def shutdown(self) -> None:
        """Send what is left, for at most `shutdown_timeout_s`. Never raises; call it once."""
        deadline = monotonic() + self._shutdown_timeout_s
        stops = [partial(self._meters.shutdown, self._shutdown_timeout_s * 1000)]
        if self._traces is not None:
            stops.append(partial(self._traces.shutdown))
        threads = [threading.Thread(target=_stop, args=(stop,), daemon=True) for stop in stops]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        if any(thread.is_alive() for thread in threads):
            _logger.warning("telemetry was not flushed in %.1f s", self._shutdown_timeout_s)


def setup(
    service_name: str, registry: Registry, settings: TelemetrySettings | None = None
) -> Telemetry:
    """Bind `registry` to its exporters. Raises TelemetryError for an OTLP protocol we lack."""
    settings = settings or TelemetrySettings()
    registry.gauge(*BUILD_INFO).labels(settings.version).set(1)
    dropped = registry.counter(*TELEMETRY_DROPPED)
    resource = Resource.create(
        {
            "service.namespace": "evenhand",
            "service.name": service_name,
            "service.version": settings.version,
            "service.instance.id": str(uuid4()),
        }
    )
    scrape = CollectorRegistry()
    readers: list[MetricReader] = [_scrape_reader(scrape)]
    if _otlp_wanted("metrics"):
        lost = dropped.labels("metrics", "export_failed")
        readers.append(_otlp_reader(registry, lost, settings.metric_interval_s))
    meters = MeterProvider(readers, resource, shutdown_on_exit=False)
    bind(registry, meters, scrape)
    traces = None
    if _otlp_wanted("traces"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        processor = BoundedSpanProcessor(
            OTLPSpanExporter(),
            dropped.labels("traces", "export_failed"),
            dropped.labels("traces", "queue_full"),
            settings.span_delay_s,
        )
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(processor)
    tracer = traces.get_tracer(SCOPE, settings.version) if traces else NoOpTracer()
    return Telemetry(tracer, scrape, meters, traces, settings.shutdown_timeout_s)


# --- trace context -----------------------------------------------------------------------------


def extract(headers: Mapping[str, str]) -> Context:
    """The caller's trace from lower-case W3C headers; none, or a malformed one, is no trace."""
    return _PROPAGATOR.extract(headers, Context())


def inject(span: ApiSpan) -> dict[str, str]:
    """The W3C headers that make a callee's spans children of `span`; empty without a trace."""
    headers: dict[str, str] = {}
    _PROPAGATOR.inject(headers, set_span_in_context(span, Context()))
    return headers


# --- exporters ---------------------------------------------------------------------------------


def _otlp_wanted(signal: str) -> bool:
    """Whether the standard variables name a collector for `metrics` or `traces`."""
    upper = signal.upper()
    variables = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{upper}_ENDPOINT")
    if not any(os.environ.get(variable) for variable in variables):
        return False
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get(f"OTEL_{upper}_EXPORTER", "otlp").strip().lower() == "none":
        return False
    shared = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    protocol = os.environ.get(f"OTEL_EXPORTER_OTLP_{upper}_PROTOCOL", shared)
    if protocol != "http/protobuf":
        raise TelemetryError(f"OTLP over {protocol!r} is not supported: use http/protobuf")
    return True


def _scrape_reader(scrape: CollectorRegistry) -> PrometheusMetricReader:
    return PrometheusMetricReader(
        disable_target_info=True,
        scope_info_enabled=False,
        registry=scrape,
        cardinality_limits=_NO_CARDINALITY_LIMIT,
    )


def _otlp_reader(
    registry: Registry, lost: Counter, interval_s: float | None
) -> PeriodicExportingMetricReader:
    # Only here: it brings an HTTP client that a process without a collector need not load.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = HistogramExporter(OTLPMetricExporter(), registry, lost, start_ns=time_ns())
    interval_ms = None if interval_s is None else interval_s * 1000
    return PeriodicExportingMetricReader(
        exporter, interval_ms, cardinality_limits=_NO_CARDINALITY_LIMIT
    )


class BoundedSpanProcessor(SpanProcessor):
    """The SDK's batch processor behind a bound of ours, so that every lost span is counted.

    The SDK drops silently when its queue is full; this one refuses at the same depth and says so.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        failed: Counter,
        refused: Counter,
        delay_s: float | None = None,
        max_queued: int = MAX_QUEUED_SPANS,
    ) -> None:
        self._lock = threading.Lock()
        self._queued = 0
        self._max_queued = max_queued
        self._refused = refused
        self._batches = BatchSpanProcessor(
            _CountingSpanExporter(exporter, failed, self._left_queue),
            max_queue_size=max_queued,
            schedule_delay_millis=None if delay_s is None else delay_s * 1000,
            max_export_batch_size=min(512, max_queued),
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do before the end."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a sampled span, or count it as lost."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self._queued >= self._max_queued:
                self._refused.inc()
                return
            self._queued += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Send what is queued, then stop."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what is queued now."""
        return self._batches.force_flush(timeout_millis)

    def _left_queue(self, num_spans: int) -> None:
        with self._lock:
            self._queued -= num_spans


class _CountingSpanExporter(SpanExporter):
    """Tells when a batch leaves the queue, and counts the spans of one that could not be sent."""

    def __init__(
        self, inner: SpanExporter, failed: Counter, left_queue: Callable[[int], None]
    ) -> None:
        self._inner = inner
        self._failed = failed
        self._left_queue = left_queue

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._left_queue(len(spans))
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._failed.inc(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _stop(stop: Callable[[], object]) -> None:
    try:
        stop()
    except Exception:
        _logger.exception("telemetry did not shut down cleanly")
