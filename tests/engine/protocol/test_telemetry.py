"""`/metrics` and OTLP show the same plain numbers; a dead collector costs only counted drops."""

import re
import socket
import threading

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, set_span_in_context

from engine.protocol import metrics, telemetry
from engine.protocol.instruments import Registry
from engine.protocol.telemetry import BoundedSpanProcessor, TelemetrySettings
from tests.support.otlp import Distribution, OtlpReceiver

FAST = TelemetrySettings(version="1.2.3", metric_interval_s=0.1, span_delay_s=0.05)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def no_otel_environment(monkeypatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector(monkeypatch):
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


def scraped(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """A naive reading of Prometheus' text format."""
    series = {}
    for line in text.decode().splitlines():
        if line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
        pairs = re.findall(r'(\w+)="([^"]*)"', labels or "")
        series[name, tuple(sorted(pairs))] = float(value)
    return series


def fill(registry: Registry) -> None:
    requests = registry.counter(*metrics.REQUESTS)
    requests.labels("acme", "m", "chat", "200").inc(3)
    requests.labels("other", "m", "chat", "429").inc()
    registry.gauge(*metrics.HEAD_AGE).labels("pool", "acme").set(1.5)
    registry.gauge(*metrics.ENGINE_KV_USAGE).labels().set(0.25)
    registry.gauge(*metrics.VTC_COUNTER).labels("pool", "acme").set(2**70)
    registry.counter(*metrics.ENGINE_PREFIX_HITS).callback(lambda: [((), 496)])
    step = registry.histogram(*metrics.ENGINE_STEP).labels()
    for value in (0.0005, 0.0006, 3.0, 100.0):
        step.observe(value)
    usage = registry.histogram(*metrics.GEN_AI_TOKEN_USAGE)
    usage.labels("chat", "evenhand", "m", "input").observe(500)


def test_metrics_and_otlp_agree(collector):
    registry = Registry()
    telemetry_ = telemetry.setup("evenhand-test", registry, FAST)
    fill(registry)
    telemetry_.shutdown()
    received = {
        (name, labels): point
        for (service, name, labels), point in collector.metrics().items()
        if service == "evenhand-test"
    }
    telemetry_ = telemetry.setup("evenhand-test", registry2 := Registry(), FAST)
    fill(registry2)
    shown = scraped(telemetry_.prometheus_text())
    telemetry_.shutdown()
    flat = {}
    for (name, labels), point in received.items():
        if not isinstance(point, Distribution):
            flat[name, labels] = point
        elif "." not in name:
            flat[f"{name}_count", labels] = point.count
            flat[f"{name}_sum", labels] = point.total
            for bound, below in zip((*point.bounds, "+Inf"), point.counts, strict=True):
                earlier = flat.get("running", 0)
                flat["running"] = earlier + below
                flat[f"{name}_bucket", (("le", str(bound)), *labels)] = flat["running"]
            del flat["running"]
    assert flat == shown
    assert (
        shown[
            "evenhand_requests_total",
            (
                ("code", "200"),
                ("model", "m"),
                ("route", "chat"),
                ("tenant", "acme"),
            ),
        ]
        == 3
    )
    assert shown["evenhand_engine_prefix_cache_hits_tokens_total", ()] == 496
    assert shown["evenhand_engine_step_seconds_bucket", (("le", "0.0005"),)] == 1
    assert shown["evenhand_engine_step_seconds_bucket", (("le", "10.0"),)] == 3
    assert shown["evenhand_engine_step_seconds_bucket", (("le", "+Inf"),)] == 4
    assert shown["evenhand_build_info", (("version", "1.2.3"),)] == 1


def test_genai_instruments_go_to_otlp_only(collector):
    registry = Registry()
    running = telemetry.setup("evenhand-test", registry, FAST)
    fill(registry)
    text = running.prometheus_text()
    running.shutdown()
    assert b"gen_ai" not in text
    labels = (
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "evenhand"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.token.type", "input"),
    )
    point = collector.metrics()["evenhand-test", "gen_ai.client.token.usage", labels]
    assert (point.count, point.total) == (1, 500)
    assert dict(zip(point.bounds, point.counts, strict=False))[1024] == 1


def test_metrics_are_exported_while_running(collector):
    registry = Registry()
    running = telemetry.setup("evenhand-test", registry, FAST)
    counter = registry.counter("late_total", "Declared after setup.").labels()
    counter.inc()
    collector.wait_for(lambda c: c.value("late_total") == 1)
    counter.inc()
    collector.wait_for(lambda c: c.value("late_total", service="evenhand-test") == 2)
    assert collector.value("late_total", service="elsewhere") is None
    assert collector.total("late_total") == 2
    running.shutdown()


@pytest.mark.parametrize(
    "spec", [s for s in vars(metrics).values() if isinstance(s, tuple) and hasattr(s, "help")]
)
def test_every_name_is_scraped_as_written(spec):
    registry = Registry()
    running = telemetry.setup("t", registry)
    if spec not in {metrics.BUILD_INFO, metrics.TELEMETRY_DROPPED}:
        declare = {
            metrics.CounterSpec: registry.counter,
            metrics.GaugeSpec: registry.gauge,
            metrics.HistogramSpec: registry.histogram,
        }[type(spec)]
        declare(*spec).labels(*("x" for _ in spec.labels))
        text = running.prometheus_text().decode()
        suffix = "_count" if isinstance(spec, metrics.HistogramSpec) else ""
        series = re.findall(rf"^{re.escape(spec.name)}{suffix}[ {{]", text, re.MULTILINE)
        assert len(series) == (0 if "." in spec.name else 1)
        if isinstance(spec, metrics.CounterSpec):
            assert spec.name.endswith("_total")
    running.shutdown()


def test_more_series_than_the_sdk_default_are_kept():
    registry = Registry()
    running = telemetry.setup("t", registry)
    family = registry.counter("many_total", "h", ("n",))
    for index in range(2500):
        family.labels(str(index)).inc(index)
    shown = scraped(running.prometheus_text())
    assert shown["many_total", (("n", "2499"),)] == 2499
    assert sum(name == "many_total" for name, _ in shown) == 2500
    assert b"overflow" not in running.prometheus_text()
    running.shutdown()


def test_a_forgotten_series_is_not_shown_again():
    registry = Registry()
    running = telemetry.setup("t", registry)
    family = registry.gauge("depth", "h", ("tenant",))
    family.labels("a").set(1)
    assert b'depth{tenant="a"}' in running.prometheus_text()
    family.forget("a")
    assert b"tenant=" not in running.prometheus_text()
    running.shutdown()


def test_a_failing_callback_hides_only_its_own_metric():
    registry = Registry()
    running = telemetry.setup("t", registry)
    registry.gauge("broken", "h").callback(lambda: 1 / 0)
    registry.gauge("whole", "h").labels().set(7)
    shown = scraped(running.prometheus_text())
    assert shown["whole", ()] == 7
    assert ("broken", ()) not in shown
    running.shutdown()


def test_one_trace_spans_two_processes(collector):
    first = telemetry.setup("evenhand-gateway", Registry(), FAST)
    second = telemetry.setup("evenhand-engine", Registry(), FAST)
    outer = first.tracer.start_span("POST /v1/chat/completions", kind=SpanKind.SERVER)
    call = first.tracer.start_span("chat m", set_span_in_context(outer), kind=SpanKind.CLIENT)
    headers = telemetry.inject(call)
    inner = second.tracer.start_span("engine", telemetry.extract(headers))
    for span in (inner, call, outer):
        span.end()
    first.shutdown()
    second.shutdown()
    spans = {span.name: span for span in collector.spans()}
    assert len({span.trace_id for span in spans.values()}) == 1
    assert spans["engine"].service == "evenhand-engine"
    assert spans["engine"].parent_span_id == spans["chat m"].span_id
    assert spans["chat m"].parent_span_id == spans["POST /v1/chat/completions"].span_id
    assert spans["POST /v1/chat/completions"].parent_span_id == ""


def test_without_otlp_ids_still_travel():
    running = telemetry.setup("t", Registry())
    span = running.tracer.start_span("x", telemetry.extract({"traceparent": TRACEPARENT}))
    assert not span.is_recording()
    assert telemetry.inject(span) == {"traceparent": TRACEPARENT}
    orphan = running.tracer.start_span("y", telemetry.extract({"traceparent": "nonsense"}))
    assert telemetry.inject(orphan) == {}
    running.shutdown()


def test_a_collector_that_refuses_costs_counted_drops(collector):
    collector.status = 400
    registry = Registry()
    running = telemetry.setup("t", registry, FAST)
    for _ in range(3):
        running.tracer.start_span("x").end()
    deadline = threading.Event()
    for _ in range(500):
        shown = scraped(running.prometheus_text())
        lost = {
            dict(labels)["signal"]: value
            for (name, labels), value in shown.items()
            if name == "evenhand_telemetry_dropped_total" and ("reason", "export_failed") in labels
        }
        if lost["traces"] == 3 and lost["metrics"] >= 1:
            break
        deadline.wait(0.02)
    assert lost["traces"] == 3
    assert lost["metrics"] >= 1
    collector.status = 200
    collector.wait_for(
        lambda c: (
            c.value("evenhand_telemetry_dropped_total", signal="traces", reason="export_failed")
            == 3
        )
    )
    running.shutdown()


def test_shutdown_with_no_collector_returns_and_raises_nothing(monkeypatch):
    with OtlpReceiver() as gone:
        url = gone.url
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    registry = Registry()
    running = telemetry.setup("t", registry, TelemetrySettings(shutdown_timeout_s=0.2))
    running.tracer.start_span("x").end()
    running.shutdown()
    running.shutdown()


def test_shutdown_does_not_wait_for_a_collector_that_never_answers(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        running = telemetry.setup("t", Registry(), TelemetrySettings(shutdown_timeout_s=0.2))
        running.tracer.start_span("x").end()
        running.shutdown()
    assert "telemetry was not flushed" in caplog.text


class _StuckExporter(SpanExporter):
    def __init__(self):
        self.release = threading.Event()
        self.entered = threading.Event()
        self.seen = 0

    def export(self, spans):
        self.entered.set()
        self.release.wait(30)
        self.seen += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        self.release.set()


def test_spans_beyond_the_queue_are_counted_and_the_rest_arrive():
    from opentelemetry.sdk.trace import TracerProvider

    registry = Registry()
    refused = registry.counter("refused_total", "h").labels()
    failed = registry.counter("failed_total", "h").labels()
    exporter = _StuckExporter()
    processor = BoundedSpanProcessor(exporter, failed, refused, delay_s=0.01, max_queued=4)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("t")
    tracer.start_span("first").end()
    assert exporter.entered.wait(10)
    for _ in range(7):
        tracer.start_span("x").end()
    exporter.release.set()
    provider.shutdown()
    assert (exporter.seen, refused.value, failed.value) == (5, 3, 0)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_otlp_traces_are_wanted_only_when_the_environment_says_so(monkeypatch, environment, wanted):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert telemetry._otlp_wanted("traces") is wanted


def test_an_otlp_protocol_we_lack_is_an_error_at_start(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(telemetry.TelemetryError, match="grpc"):
        telemetry.setup("t", Registry())
