"""The event log of a running gateway: kept over a restart, and what happens when it cannot be."""

import asyncio
import errno
import shutil
import tempfile
import time
from pathlib import Path

import aiohttp
import pytest

from fairness.events import DegradedOff, DegradedOn, Enqueued, Finished, Granted, Restarted
from gateway.eventfiles import Appender, segments
from gateway.settings import ConfigurationError
from tests.gateway.conftest import logged

BODY = {"model": "smollm2-135m", "prompt": [5] * 100, "max_tokens": 4}
UNITS = 100 + 2 * 4


@pytest.fixture
def folder():
    made = Path(tempfile.mkdtemp(prefix="eh"))  # a socket's path must be short
    yield made
    shutil.rmtree(made)


async def ask(gateway, **fields):
    async with gateway.client().post("/v1/completions", json=BODY | fields) as reply:
        return reply.status, reply.headers, await reply.json()


async def ready(gateway):
    async with aiohttp.ClientSession(gateway.admin_url) as client, client.get("/readyz") as reply:
        return reply.status, " ".join((await reply.json())["reasons"])


async def counters(gateway):
    """Of every tenant that the pool knows."""
    async with aiohttp.ClientSession(gateway.admin_url) as client, client.get("/pools") as reply:
        (pool,) = (await reply.json())["pools"]
    return {one["tenant"]: one["counter"] for one in pool["tenants"]}


def read(metrics, name):
    return sum(value for key, value in metrics.items() if key.startswith(name))


async def test_counters_outlive_the_process_and_times_are_unix_seconds(make_gateway, folder):
    began = time.time()
    async with make_gateway(folder=folder) as gateway:
        _, key = await gateway.new_tenant("other")
        waits = asyncio.create_task(ask(gateway))
        assert (await waits)[0] == 200
        async with gateway.client(key).post("/v1/completions", json=BODY) as reply:
            assert reply.status == 200
        assert read(await gateway.metrics(), "evenhand_service_units_total") == 2 * UNITS
        before = await counters(gateway)
        assert before.keys() == {"acme", "other"}
    async with make_gateway(folder=folder) as gateway:
        assert await counters(gateway) == before
        assert (await ask(gateway))[0] == 200
        metrics = await gateway.metrics()
    events = logged(folder / "fairness")
    kinds = [type(event) for event in events]
    assert kinds.count(Enqueued) == kinds.count(Granted) == kinds.count(Finished) == 3
    (restarted,) = [event for event in events if isinstance(event, Restarted)]
    assert restarted.epoch == 2
    moments = [event.now for event in events]
    assert moments == sorted(moments)
    assert began - 1 <= moments[0] <= moments[-1] <= time.time() + 1
    assert read(metrics, "evenhand_log_bytes_total") > 0
    assert read(metrics, "evenhand_journal_backlog") == 0


async def test_a_disk_that_refuses_stops_grants_and_loses_nothing(
    make_gateway, folder, monkeypatch
):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    async with make_gateway(folder=folder) as gateway:
        assert (await ask(gateway))[0] == 200
        with monkeypatch.context() as full:
            full.setattr(Appender, "write", refuse)
            gateway.upstream.script.slots = 17  # something happens, which cannot be written
            await gateway.eventually(lambda: _unready(gateway))
            status, headers, body = await ask(gateway)
            assert (status, body["error"]["code"]) == (503, "log_unavailable")
            assert int(headers["retry-after"]) >= 1
            assert "No space left" in (await ready(gateway))[1]
            metrics = await gateway.metrics()
            assert metrics['evenhand_degraded{reason="event_log"}'] == 1
            assert read(metrics, "evenhand_journal_backlog") > 0
        await gateway.eventually(lambda: _is(ready(gateway), (200, "")))
        assert (await ask(gateway))[0] == 200
        assert (await gateway.metrics())['evenhand_degraded{reason="event_log"}'] == 0
    events = logged(folder / "fairness")
    changes = [event for event in events if isinstance(event, DegradedOn | DegradedOff)]
    assert [type(event) for event in changes] == [DegradedOn, DegradedOff]
    assert {event.reason for event in changes} == {"event_log"}
    assert [type(event) for event in events].count(Finished) == 2


async def test_off_records_nothing(make_gateway, folder):
    async with make_gateway(folder=folder, fairness={"event_log": "off"}) as gateway:
        assert (await ask(gateway))[0] == 200
        assert (await ready(gateway))[0] == 200
    assert not (folder / "fairness").exists()


async def test_a_damaged_log_is_said_at_start_and_left_alone(make_gateway, folder):
    async with make_gateway(folder=folder) as gateway:
        assert (await ask(gateway))[0] == 200
    _, last = segments(folder / "fairness" / "smollm2-135m")
    damaged = last.path.read_bytes().replace(b'"floor"', b'"flood"', 1)
    last.path.write_bytes(damaged)
    with pytest.raises(ConfigurationError, match=r"00000002\.log, line 1"):
        async with make_gateway(folder=folder):
            pass
    assert last.path.read_bytes() == damaged


async def _unready(gateway):
    return (await ready(gateway))[0] == 503


async def _is(question, value):
    return await question == value
