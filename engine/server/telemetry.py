"""The engine's metrics and its spans: counts on the hot path, OpenTelemetry only at the end.

`EngineMetrics` belongs to the engine thread, apart from what exporters read. A request's spans are
made once, when it has ended, from the times its journey kept.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from engine.core.engine_core import CoreStats
from engine.core.request import FinishReason
from engine.protocol import metrics as names
from engine.protocol.instruments import Registry, Sample, SampleSource
from engine.server.journey import Ended, Journey

_NS = 1_000_000_000


class EngineMetrics:
    """Every `evenhand_engine_*` metric. Totals the core keeps are read from its last statistics."""

    def __init__(self, registry: Registry) -> None:
        self._stats: CoreStats | None = None
        self._step = registry.histogram(*names.ENGINE_STEP).labels()
        self._scheduler = registry.histogram(*names.ENGINE_SCHEDULER).labels()
        self._batch_tokens = registry.histogram(*names.ENGINE_BATCH_TOKENS).labels()
        self._errors = registry.counter(*names.ENGINE_REQUEST_ERRORS)
        self._prompt_tokens = registry.counter(*names.ENGINE_PROMPT_TOKENS).labels()
        self._generation_tokens = registry.counter(*names.ENGINE_GENERATION_TOKENS).labels()
        self._first_token = registry.histogram(*names.ENGINE_TIME_TO_FIRST_TOKEN).labels()
        self._inter_token = registry.histogram(*names.ENGINE_INTER_TOKEN_LATENCY).labels()
        self._queue = registry.histogram(*names.ENGINE_REQUEST_QUEUE).labels()
        self._declare_core_totals(registry)
        self._declare_core_state(registry)

    def stepped(self, *, step_s: float, execute_s: float, batch_tokens: int) -> None:
        """One step ended; what the runner did not take is the scheduler's."""
        self._step.observe(step_s)
        self._scheduler.observe(step_s - execute_s)
        self._batch_tokens.observe(batch_tokens)

    def published(self, stats: CoreStats) -> None:
        """The core's figures after a turn."""
        self._stats = stats

    def admitted(self, *, queue_s: float, prompt_tokens: int) -> None:
        """A request began to run."""
        self._queue.observe(queue_s)
        self._prompt_tokens.inc(prompt_tokens)

    def first_token(self, since_s: float) -> None:
        """A request's first token came, `since_s` after its arrival."""
        self._first_token.observe(since_s)

    def next_token(self, since_s: float) -> None:
        """A later token came, `since_s` after the one before it in the same answer."""
        self._inter_token.observe(since_s)

    def emitted(self, num_tokens: int) -> None:
        """So many tokens came in one step."""
        self._generation_tokens.inc(num_tokens)

    def request_error(self, hook: str) -> None:
        """A request ended because something failed at `hook`; each hook has one writing thread."""
        self._errors.labels(hook).inc()

    def _declare_core_totals(self, registry: Registry) -> None:
        for spec, member in (
            (names.ENGINE_PREEMPTIONS, "preemptions"),
            (names.ENGINE_TOKENS_RECOMPUTED, "recomputed_tokens"),
            (names.ENGINE_TOKENS_COMPUTED, "computed_tokens"),
            (names.ENGINE_PREFIX_QUERIES, "prefix_query_tokens"),
            (names.ENGINE_PREFIX_HITS, "prefix_hit_tokens"),
            (names.ENGINE_NO_PROGRESS_STEPS, "no_progress_steps"),
            (names.ENGINE_BLOCKS_COPIED, "copied_blocks"),
            (names.ENGINE_BLOCKS_EVICTED, "evicted_blocks"),
        ):
            registry.counter(*spec).callback(self._reader(member))

    def _declare_core_state(self, registry: Registry) -> None:
        for spec, member in (
            (names.ENGINE_REQUESTS_RUNNING, "running"),
            (names.ENGINE_REQUESTS_WAITING, "waiting"),
            (names.ENGINE_RESERVE_BLOCKS, "reserve_blocks"),
            (names.ENGINE_BLOCKS_PINNED, "pinned_blocks"),
        ):
            registry.gauge(*spec).callback(self._reader(member))
        registry.gauge(*names.ENGINE_KV_BLOCKS).callback(self._kv_blocks)
        registry.gauge(*names.ENGINE_KV_USAGE).callback(self._kv_usage)

    def _reader(self, member: str) -> SampleSource:
        def read() -> list[Sample]:
            stats = self._stats
            return [] if stats is None else [((), getattr(stats, member))]

        return read

    def _kv_blocks(self) -> list[Sample]:
        stats = self._stats
        if stats is None:
            return []
        return [
            (("free",), stats.free_blocks),
            (("cached",), stats.cached_blocks),
            (("held",), stats.held_blocks),
        ]

    def _kv_usage(self) -> list[Sample]:
        stats = self._stats
        return [] if stats is None else [((), stats.held_blocks / stats.total_blocks)]


class RequestSpans:
    """Writes one span per ended request, with its queue, prefill and decode beneath."""

    def __init__(self, tracer: Tracer, model_id: str) -> None:
        self._tracer = tracer
        self._model_id = model_id

    def record(self, ended: Ended) -> None:
        """Make the spans of one journey; they continue the trace the gateway began."""
        journey = ended.journey
        submission = journey.submission
        span = self._tracer.start_span(
            f"{submission.operation} {self._model_id}",
            context=submission.trace,
            kind=SpanKind.SERVER,
            start_time=submission.arrived_ns,
        )
        if span.is_recording():
            span.set_attributes(self._attributes(ended))
            if ended.error_type is not None:
                span.set_attribute(names.ERROR_TYPE, ended.error_type)
            if FinishReason.ERROR in ended.finish_reasons:
                span.set_status(Status(StatusCode.ERROR))
            self._phases(span, ended)
        span.end(end_time=_wall_ns(journey, ended.ended_at))

    def _phases(self, parent: Span, ended: Ended) -> None:
        journey = ended.journey
        context = set_span_in_context(parent)
        marks = [journey.submission.arrived_at, journey.admitted_at, journey.first_token_at]
        for name, began, until in zip(
            ("queue", "prefill", "decode"), marks, [*marks[1:], ended.ended_at], strict=True
        ):
            if began is None:
                return
            child = self._tracer.start_span(
                name, context=context, start_time=_wall_ns(journey, began)
            )
            child.end(end_time=_wall_ns(journey, ended.ended_at if until is None else until))

    def _attributes(self, ended: Ended) -> dict[str, str | int | float | list[str]]:
        journey = ended.journey
        submission = journey.submission
        sampling = submission.samples[0].request.sampling
        return {
            names.OPERATION_NAME: submission.operation,
            names.PROVIDER_NAME: names.PROVIDER,
            names.REQUEST_MODEL: self._model_id,
            names.RESPONSE_MODEL: self._model_id,
            names.RESPONSE_ID: submission.request_id,
            names.REQUEST_MAX_TOKENS: sampling.max_tokens,
            names.REQUEST_TEMPERATURE: sampling.temperature,
            names.REQUEST_TOP_P: sampling.top_p,
            names.USAGE_INPUT_TOKENS: submission.prompt_tokens,
            names.USAGE_CACHED_TOKENS: journey.num_cached_tokens,
            names.USAGE_OUTPUT_TOKENS: journey.output_tokens,
            names.RESPONSE_FINISH_REASONS: [reason.value for reason in ended.finish_reasons],
        }


def _wall_ns(journey: Journey, at: float) -> int:
    """A monotonic moment of this request on the wall clock, from the one moment known on both."""
    submission = journey.submission
    return submission.arrived_ns + int((at - submission.arrived_at) * _NS)
