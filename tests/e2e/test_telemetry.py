"""`/metrics` and an OTLP receiver say the same, and one trace spans both processes."""

import time
import urllib.request

import openai
import pytest

HITS = "evenhand_engine_prefix_cache_hits_tokens_total"


def scraped(stack, name):
    total = 0.0
    for path in ("/metrics", "/metrics/engine"):
        with urllib.request.urlopen(stack.admin_url + path) as answer:
            for line in answer.read().decode().splitlines():
                if line.split("{")[0].split(" ")[0] == name:
                    total += float(line.rpartition(" ")[2])
    return total


@pytest.fixture(scope="module")
def asked(stack):
    """A 500-token prompt twice, by a tenant of its own; returns the hits before and both ids."""
    before = scraped(stack, HITS)
    ids = []
    with openai.OpenAI(base_url=stack.url, api_key=stack.new_key("watched")) as client:
        model = client.models.list().data[0].id
        for _ in range(2):
            raw = client.completions.with_raw_response.create(
                model=model, prompt=[3_000 + i for i in range(500)], max_tokens=2, temperature=0
            )
            ids.append(raw.headers["x-request-id"])
    return before, ids


def test_hits_agree_on_both_roads(stack, otlp, asked):
    before, _ = asked
    assert scraped(stack, HITS) - before == 496
    deadline = time.monotonic() + 30
    while otlp.total(HITS) != scraped(stack, HITS):
        assert time.monotonic() < deadline, (otlp.total(HITS), scraped(stack, HITS))
        time.sleep(0.1)


def test_one_trace_spans_both_processes(stack, otlp, asked):
    deadline = time.monotonic() + 30
    while True:
        traces = {}
        for span in otlp.spans():
            traces.setdefault(span.trace_id, []).append(span)
        whole = [
            spans
            for spans in traces.values()
            if {span.service for span in spans} >= {"evenhand-gateway", "evenhand-engine"}
        ]
        if len(whole) >= 2:
            break
        assert time.monotonic() < deadline, {s.service for t in traces.values() for s in t}
        time.sleep(0.1)
    spans = whole[0]
    ids = {span.span_id for span in spans}
    roots = [span for span in spans if span.parent_span_id not in ids]
    assert len(roots) == 1, "every span but the first hangs under another"


def test_no_tenant_text_or_key_reaches_telemetry(stack, otlp, asked):
    for path in ("/metrics", "/metrics/engine"):
        with urllib.request.urlopen(stack.admin_url + path) as answer:
            assert stack.key not in answer.read().decode()
    assert stack.key not in str(otlp.spans())
    assert stack.key not in "".join(stack.stderr)
