"""Shows a `Registry` to OpenTelemetry and Prometheus; the counts stay where they are.

Counters and gauges become observable instruments. OpenTelemetry has no observable histogram, so
bucket arrays reach `/metrics` by a collector beside the SDK's reader, and OTLP by an exporter
that appends them to what the SDK collected. Names with a dot (GenAI conventions) go to OTLP only.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from time import time_ns
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from engine.protocol.instruments import (
    AnyFamily,
    Counter,
    CounterFamily,
    GaugeFamily,
    Histogram,
    HistogramFamily,
    Registry,
)

SCOPE: Final = "evenhand"
_MAX_INT64: Final = 2**63 - 1


def bind(registry: Registry, provider: MeterProvider, scrape: CollectorRegistry) -> None:
    """Give every family, also those declared later, its instrument or its place on `/metrics`."""
    meter = provider.get_meter(SCOPE)
    registry.subscribe(lambda family: _observe(family, meter))
    scrape.register(HistogramCollector(registry))


def _observe(family: AnyFamily, meter: Meter) -> None:
    if isinstance(family, HistogramFamily):
        return
    create = (
        meter.create_observable_counter
        if isinstance(family, CounterFamily)
        else meter.create_observable_gauge
    )
    create(family.name, [_reader(family)], unit=family.unit, description=family.help)


def _reader(
    family: CounterFamily | GaugeFamily,
) -> Callable[[CallbackOptions], list[Observation]]:
    def read(_options: CallbackOptions) -> list[Observation]:
        return [
            Observation(_exportable(value), dict(zip(family.label_names, labels, strict=True)))
            for labels, value in family.samples()
        ]

    return read


def _exportable(value: float) -> float:
    """OTLP integers have 64 bits; ours have no end, so a larger one travels as a float."""
    return float(value) if abs(value) > _MAX_INT64 else value


class HistogramCollector(Collector):
    """The registry's histograms in Prometheus' form."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """One Prometheus family for each histogram whose name Prometheus can hold."""
        for family in _histograms(self._registry):
            if "." not in family.name:
                yield _scraped(family)


def _scraped(family: HistogramFamily) -> HistogramMetricFamily:
    shown = HistogramMetricFamily(family.name, family.help, labels=family.label_names)
    bounds = [*(str(bound) for bound in family.buckets), "+Inf"]
    for labels, child in family.children():
        cumulative = [float(count) for count in accumulate(child.counts)]
        shown.add_metric(labels, list(zip(bounds, cumulative, strict=True)), child.total)
    return shown


class HistogramExporter(MetricExporter):
    """Appends the registry's histograms to each collection, and counts those that got lost.

    `inner` does the sending. Everything is cumulative since `start_ns`, Unix time in nanoseconds.
    """

    def __init__(
        self, inner: MetricExporter, registry: Registry, lost: Counter, start_ns: int
    ) -> None:
        super().__init__()
        self._inner = inner
        self._registry = registry
        self._lost = lost
        self._start_ns = start_ns

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Send one collection; a failure is counted and dropped, the next one holds its facts."""
        complete = self._with_histograms(metrics_data)
        result = self._inner.export(complete, timeout_millis=timeout_millis, **kwargs)
        if result is not MetricExportResult.SUCCESS:
            self._lost.inc()
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing is held here."""
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Stop sending, also in the middle of a retry."""
        self._inner.shutdown(timeout_millis, **kwargs)

    def _with_histograms(self, collected: MetricsData) -> MetricsData:
        now_ns = time_ns()
        metrics = [
            _exported(family, self._start_ns, now_ns)
            for family in _histograms(self._registry)
            if family.children()
        ]
        return MetricsData(
            [
                ResourceMetrics(
                    each.resource,
                    [_joined(scope, metrics) for scope in each.scope_metrics],
                    each.schema_url,
                )
                for each in collected.resource_metrics
            ]
        )


def _joined(scope: ScopeMetrics, metrics: Sequence[Metric]) -> ScopeMetrics:
    """Histograms join the scope of the counters: of two equal scopes the encoder keeps one."""
    if scope.scope.name != SCOPE:
        return scope
    return ScopeMetrics(scope.scope, [*scope.metrics, *metrics], scope.schema_url)


def _exported(family: HistogramFamily, start_ns: int, now_ns: int) -> Metric:
    points = [
        _point(child, dict(zip(family.label_names, labels, strict=True)), start_ns, now_ns)
        for labels, child in family.children()
    ]
    data = HistogramData(points, AggregationTemporality.CUMULATIVE)
    return Metric(family.name, family.help, family.unit, data)


def _point(
    child: Histogram, attributes: dict[str, str], start_ns: int, now_ns: int
) -> HistogramDataPoint:
    counts = list(child.counts)
    return HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=start_ns,
        time_unix_nano=now_ns,
        count=sum(counts),
        sum=child.total,
        bucket_counts=counts,
        explicit_bounds=child.bounds,
        # Optional on the wire and unknown here; the SDK's type forgets to say so.
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
    )


def _histograms(registry: Registry) -> Sequence[HistogramFamily]:
    return [family for family in registry.families() if isinstance(family, HistogramFamily)]
