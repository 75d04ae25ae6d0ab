"""A small OTLP/HTTP collector on loopback that keeps what it is sent, for tests to read."""

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, str, Labels]


@dataclass(frozen=True)
class Distribution:
    """A histogram point: `counts` has one more entry than `bounds`."""

    count: int
    total: float
    bounds: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived; ids are lower-case hex, `parent_span_id` is empty for a root."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    attributes: dict[str, object]
    start_ns: int
    end_ns: int


class OtlpReceiver:
    """`with OtlpReceiver() as collector:` set `OTEL_EXPORTER_OTLP_ENDPOINT` to `collector.url`.

    `status` other than 200 makes it answer with that status and keep nothing.
    """

    def __init__(self) -> None:
        self.status = 200
        self._lock = threading.Lock()
        self._series: dict[Series, float | Distribution] = {}
        self._spans: list[ReceivedSpan] = []
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                answer = receiver._receive(self.path, body)
                self.send_response(receiver.status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Tests have their own output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def metrics(self) -> dict[Series, float | Distribution]:
        """The newest point of every series, by (service name, metric name, sorted labels)."""
        with self._lock:
            return dict(self._series)

    def value(self, name: str, *, service: str | None = None, **labels: str) -> float | None:
        """The newest number of one series, None before it arrived; over services if one has it."""
        wanted = tuple(sorted(labels.items()))
        for (sender, metric, series_labels), point in self.metrics().items():
            if (metric, series_labels) == (name, wanted) and service in {None, sender}:
                return point.total if isinstance(point, Distribution) else point
        return None

    def total(self, name: str) -> float:
        """The newest numbers of one metric summed over its series and services; 0 before any."""
        return sum(
            point.total if isinstance(point, Distribution) else point
            for (_, metric, _), point in self.metrics().items()
            if metric == name
        )

    def spans(self) -> list[ReceivedSpan]:
        """Every span received so far, in order of arrival."""
        with self._lock:
            return list(self._spans)

    def wait_for(self, condition: Callable[[Self], object], timeout_s: float = 30.0) -> None:
        """Return once `condition(self)` holds. Raises TimeoutError when it does not in time."""
        deadline = time.monotonic() + timeout_s
        while not condition(self):
            if time.monotonic() > deadline:
                raise TimeoutError("the collector did not receive what was waited for")
            time.sleep(0.02)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self, path: str, body: bytes) -> bytes:
        if self.status != 200:
            self.refused += 1
            return b""
        if path == "/v1/metrics":
            self._receive_metrics(ExportMetricsServiceRequest.FromString(body))
            return ExportMetricsServiceResponse().SerializeToString()
        self._receive_spans(ExportTraceServiceRequest.FromString(body))
        return ExportTraceServiceResponse().SerializeToString()

    def _receive_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            service = str(_attributes(resource.resource.attributes).get("service.name", ""))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._receive_metric(service, metric)

    def _receive_metric(self, service: str, metric: object) -> None:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = {key: str(value) for key, value in _attributes(point.attributes).items()}
            series = (service, metric.name, tuple(sorted(labels.items())))
            with self._lock:
                self._series[series] = _point(kind, point)

    def _receive_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = str(_attributes(resource.resource.attributes).get("service.name", ""))
            for scope in resource.scope_spans:
                received = [
                    ReceivedSpan(
                        service=service,
                        name=span.name,
                        trace_id=span.trace_id.hex(),
                        span_id=span.span_id.hex(),
                        parent_span_id=span.parent_span_id.hex(),
                        attributes=_attributes(span.attributes),
                        start_ns=span.start_time_unix_nano,
                        end_ns=span.end_time_unix_nano,
                    )
                    for span in scope.spans
                ]
                with self._lock:
                    self._spans.extend(received)


def _point(kind: str, point: object) -> float | Distribution:
    if kind == "histogram":
        return Distribution(
            point.count, point.sum, tuple(point.explicit_bounds), tuple(point.bucket_counts)
        )
    return getattr(point, point.WhichOneof("value"))


def _attributes(pairs: list[KeyValue]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
