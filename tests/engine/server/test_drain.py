"""SIGTERM: nothing new starts, begun streams finish or are told, the process exits 0."""

import asyncio
import contextlib
import signal
import sys
import tempfile
from pathlib import Path

import aiohttp
import pytest

from tests.engine.server.conftest import (
    MODEL,
    Client,
    client_for,
    completion,
    echo,
    until,
    write_model,
)
from tests.engine.server.serve_echo import STEP_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def model_folder(tmp_path):
    folder = tmp_path / MODEL
    folder.mkdir()
    write_model(folder)
    return folder


@contextlib.asynccontextmanager
async def engine_process(folder, drain_deadline_s, step_s=STEP_S):
    with tempfile.TemporaryDirectory(prefix="eh") as sockets:
        path = Path(sockets) / "e.sock"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.engine.server.serve_echo"),
            *(str(folder), str(path), str(drain_deadline_s), str(step_s)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert (await asyncio.wait_for(process.stdout.readline(), 60)) == b"ready\n"
            connector = aiohttp.UnixConnector(str(path), limit=0)
            async with aiohttp.ClientSession(connector=connector) as session:
                yield process, Client(session), path
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_begun_streams_finish_and_the_process_exits_0(model_folder, number):
    text = "a sentence that takes a while to repeat"
    async with engine_process(model_folder, 20) as (process, client, path):
        async with await client.post(
            "/v1/completions", completion(echo(text), stream=True)
        ) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(number)
            rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert not path.exists()


async def test_what_outlives_the_deadline_gets_an_error_event(model_folder):
    async with engine_process(model_folder, 0.2) as (process, client, _):
        async with await client.post(
            "/v1/completions", completion("endless", stream=True)
        ) as response:
            await response.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            rest = await response.read()
        assert b'"code":"shutting_down"' in rest
        assert b"[DONE]" not in rest
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_draining_engine_refuses_new_requests_and_says_it_lives(engine, client):
    engine.engine.service.drain()
    async with await client.post("/v1/completions", completion("x")) as response:
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert (await response.json())["error"]["code"] == "shutting_down"
    assert await client.get("/health") == {"status": "draining"}


async def test_an_idle_engine_does_not_spin(engine, client):
    await client.completion(echo("x"))
    await until(lambda: engine.engine.service.loop.snapshot.stats.running == 0)
    before = engine.engine.service.loop.snapshot.sequence
    await asyncio.sleep(0.2)
    assert engine.engine.service.loop.snapshot.sequence == before


async def test_stopping_fails_what_still_runs(launch):
    engine = launch(drain_deadline_s=0.0)
    async with client_for(engine) as client:
        engine.runner.hold()
        running = asyncio.create_task(client.completion("endless"))
        await asyncio.to_thread(engine.runner.entered.wait, 20)
        engine.server.request_stop()
        await until(lambda: engine.engine.service.loop._commands)
        engine.runner.let_go()
        status, body = await running
    assert (status, body["error"]["code"]) == (503, "shutting_down")
