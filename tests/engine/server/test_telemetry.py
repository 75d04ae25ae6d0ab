"""Metrics equal the core's own counts; one span a request, in the gateway's trace."""

import asyncio
from dataclasses import replace

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.core.preemption import PreemptEvery
from engine.server.telemetry import RequestSpans
from tests.engine.server.conftest import MODEL, client_for, completion, echo, until
from tests.support.otlp import OtlpReceiver

TOTALS = {
    "preemptions_total": "preemptions",
    "preempted_tokens_recomputed_total": "recomputed_tokens",
    "computed_tokens_total": "computed_tokens",
    "prefix_cache_queries_tokens_total": "prefix_query_tokens",
    "prefix_cache_hits_tokens_total": "prefix_hit_tokens",
    "no_progress_steps_total": "no_progress_steps",
    "copied_blocks_total": "copied_blocks",
    "evicted_blocks_total": "evicted_blocks",
    "pinned_blocks": "pinned_blocks",
    "requests_running": "running",
    "requests_waiting": "waiting",
    "reserve_blocks": "reserve_blocks",
    'kv_blocks{state="free"}': "free_blocks",
    'kv_blocks{state="cached"}': "cached_blocks",
    'kv_blocks{state="held"}': "held_blocks",
}


async def assert_metrics_equal_stats(engine, client):
    stats = engine.core.stats()
    for name, member in TOTALS.items():
        assert await client.metric(f"evenhand_engine_{name}") == getattr(stats, member), name
    return stats


async def test_metrics_equal_stats(engine, client):
    for _ in range(2):
        await client.completion("x" * 500, max_tokens=3)
    stats = await assert_metrics_equal_stats(engine, client)
    assert stats.prefix_hit_tokens == 496
    for name, value in {
        "prompt_tokens_total": 1000,
        "generation_tokens_total": 6,
        "time_to_first_token_seconds_count": 2,
        "inter_token_latency_seconds_count": 4,
        "request_queue_seconds_count": 2,
        "kv_usage_ratio": 0,
        "batch_tokens_sum": stats.computed_tokens,
        "step_seconds_count": len(engine.runner.batches),
        "scheduler_seconds_count": len(engine.runner.batches),
    }.items():
        assert await client.metric(f"evenhand_engine_{name}") == value, name


async def test_a_forced_preemption_shows_and_changes_no_text(launch):
    calm, forced = launch(), launch(assembly={"preemption": PreemptEvery(3)})
    texts = []
    for engine in (calm, forced):
        async with client_for(engine) as client:
            _, body = await client.completion(echo("the same text either way"))
            texts.append(body["choices"][0]["text"])
            stats = await assert_metrics_equal_stats(engine, client)
    assert texts[0] == texts[1] == "the same text either way"
    assert calm.core.stats().preemptions == 0
    assert stats.preemptions > 0
    assert stats.recomputed_tokens > 0


async def test_forced_preemptions_reach_a_collector_as_the_engine_counts_them(launch, monkeypatch):
    with OtlpReceiver() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        engine = launch(assembly={"preemption": PreemptEvery(3)})
        async with client_for(engine) as client:
            await client.completion(echo("the same numbers on every road"))
            stats = await assert_metrics_equal_stats(engine, client)
        await asyncio.to_thread(engine.engine.telemetry.shutdown)
    assert stats.preemptions > 0
    assert stats.recomputed_tokens > 0
    for name in (
        "preemptions_total",
        "preempted_tokens_recomputed_total",
        "computed_tokens_total",
        "prefix_cache_hits_tokens_total",
    ):
        assert collector.value(f"evenhand_engine_{name}") == getattr(stats, TOTALS[name]), name


async def test_one_span_a_request_continues_the_trace(engine, client):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = RequestSpans(provider.get_tracer("test"), MODEL)
    engine.engine.service.loop._on_ended = spans.record
    trace_id, parent_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace_id}-{parent_id}-01"}
    payload = completion(echo("secret words"), request_id="traced", max_tokens=4)
    (await client.post("/v1/completions", payload, headers=headers)).release()
    await until(lambda: len(exporter.get_finished_spans()) == 4)
    by_name = {span.name: span for span in exporter.get_finished_spans()}
    request = by_name.pop(f"text_completion {MODEL}")
    assert f"{request.context.trace_id:032x}" == trace_id
    assert f"{request.parent.span_id:016x}" == parent_id
    assert request.attributes["gen_ai.usage.input_tokens"] == 13
    assert request.attributes["gen_ai.usage.output_tokens"] == 4
    assert request.attributes["gen_ai.response.id"] == "traced"
    assert request.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert set(by_name) == {"queue", "prefill", "decode"}
    assert all(span.parent.span_id == request.context.span_id for span in by_name.values())
    assert by_name["queue"].start_time == request.start_time
    assert by_name["queue"].end_time == by_name["prefill"].start_time
    assert by_name["prefill"].end_time == by_name["decode"].start_time
    assert by_name["decode"].end_time == request.end_time
    assert "secret" not in str([dict(span.attributes) for span in exporter.get_finished_spans()])


async def test_the_span_of_several_samples_counts_them_all(engine, client):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine.engine.service.loop._on_ended = RequestSpans(provider.get_tracer("t"), MODEL).record
    await client.completion(echo("three"), n=3, max_tokens=4)
    await until(lambda: len(exporter.get_finished_spans()) == 4)
    by_name = {span.name: span for span in exporter.get_finished_spans()}
    request = by_name[f"text_completion {MODEL}"]
    assert request.attributes["gen_ai.usage.output_tokens"] == 12
    assert request.attributes["gen_ai.usage.input_tokens"] == len(echo("three"))
    assert request.attributes["gen_ai.response.finish_reasons"] == ("length",) * 3


async def test_the_governors_reserve_shows(launch):
    engine = launch(num_blocks=200, reserve=0.02, max_reserve=0.1)
    async with client_for(engine) as client:
        await client.completion(echo("x"))
        assert await client.metric("evenhand_engine_reserve_blocks") == 4
        engine.engine.service.loop._metrics.published(
            replace(engine.core.stats(), reserve_blocks=20)
        )
        assert await client.metric("evenhand_engine_reserve_blocks") == 20


async def test_an_aborted_request_still_leaves_a_span(engine, client):
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine.engine.service.loop._on_ended = RequestSpans(provider.get_tracer("t"), MODEL).record
    engine.runner.hold()
    gone = asyncio.create_task(client.post("/v1/completions", completion("endless")))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    gone.cancel()
    await until(lambda: engine.engine.service.loop._commands)
    engine.runner.let_go()
    await until(lambda: len(exporter.get_finished_spans()) == 2)
    (request,) = [span for span in exporter.get_finished_spans() if span.name != "queue"]
    assert request.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert request.attributes["error.type"] == "RequestAborted"
