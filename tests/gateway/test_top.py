"""What `evenhand top` prints of a running gateway, and says when none runs."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import struct
import termios

import pytest
from typer.testing import CliRunner

from gateway.cli.frames import frame
from gateway.cli.main import app
from gateway.overview import figures
from tests.support.stack import EVENHAND, ROOT, clean_environment

BODY = {"model": "smollm2-135m", "prompt": [5] * 100, "max_tokens": 500}


async def run_top(*options):
    """In a process of its own: the gateway's loop must go on meanwhile."""
    process = await asyncio.create_subprocess_exec(
        *EVENHAND,
        *("top", "--interval", "0.2", *options),
        cwd=ROOT,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.fixture
async def busy(gateway):
    """One tenant runs, its next request waits; another is served now and then."""
    script = gateway.upstream.script
    script.tokens, script.between_s, script.slots = 1_000, 0.02, 3
    _, key = await gateway.new_tenant("narrow", concurrency=1)

    async def ask(key):
        async with gateway.client(key).post("/v1/completions", json=BODY) as reply:
            return reply.status

    calls = [asyncio.create_task(ask(one)) for one in (key, key, gateway.key)]
    await gateway.eventually(lambda: len(gateway.upstream.running) == 2)
    yield gateway
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_one_frame_as_json_and_as_a_table(busy):
    by_socket = await run_top("--json", "--data-dir", str(busy.admin_socket.parent))
    by_url, table = await asyncio.gather(
        run_top("--json", "--url", busy.admin_url), run_top("--once", "--url", busy.admin_url)
    )
    for status, out, _ in (by_socket, by_url):
        assert status == 0
        (pool,) = json.loads(out)["pools"]
        assert (pool["pool"], pool["policy"], pool["degraded"]) == ("smollm2-135m", "vtc", [])
        assert 0 <= pool["spread"] <= pool["spread_bound"] == sum(pool["bound_terms"].values())
        tenants = {one["tenant"]: one for one in pool["tenants"]}
        assert tenants.keys() == {"acme", "narrow"}
        assert (tenants["narrow"]["queued"], tenants["narrow"]["running"]) == (1, 1)
        assert tenants["narrow"]["blocked"]
        assert tenants["narrow"]["head_age_s"] > 0
        assert sum(one["share"] for one in tenants.values()) == pytest.approx(1)
        (replica,) = pool["replicas"]
        assert (replica["up"], replica["granted"], replica["slots"]) == (True, 2, 3)
        assert (replica["running"], replica["kv_usage"]) == (0, None)  # as the upstream says
    status, out, _ = table
    assert status == 0
    for word in ("narrow", "acme", "spread", "floor lag", "smollm2-135m", "blocked", "SHARE"):
        assert word in out


async def test_it_runs_in_a_terminal_until_ctrl_c(busy):
    terminal, its_end = os.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *(*EVENHAND, "top", "--interval", "0.1", "--url", busy.admin_url),
        cwd=ROOT,
        env=clean_environment(TERM="xterm"),
        stdout=its_end,
    )
    os.close(its_end)
    try:
        await asyncio.wait_for(asyncio.to_thread(_read_until, terminal, b"narrow"), 30)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(asyncio.to_thread(_read_until, terminal, None), 30)
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(terminal)


def _read_until(terminal, word):
    seen = b""
    with contextlib.suppress(OSError):  # so a terminal ends whose other side is closed
        while (word is None or word not in seen) and (more := os.read(terminal, 4096)):
            seen += more


def test_it_wants_a_terminal():
    said = CliRunner().invoke(app, ["top"])
    assert said.exit_code == 2
    assert "--once" in said.stderr


@pytest.mark.parametrize(
    ("options", "status", "word"),
    [
        ((), 1, "gateway.sock"),
        (("--url", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1"),
        (("--url", "127.0.0.1:1"), 2, "not an http"),
    ],
)
def test_without_a_gateway_it_says_where_it_looked(tmp_path, monkeypatch, options, status, word):
    monkeypatch.setenv("EVENHAND_DATA_DIR", str(tmp_path))
    for how in ("--once", "--json"):
        said = CliRunner().invoke(app, ["top", how, *options])
        assert (said.exit_code, said.stdout, said.stderr.count("\n")) == (status, "", 1)
        assert said.stderr.startswith("error: ")
        assert word in said.stderr


def test_a_frame_is_what_happened_in_between():
    def look(service, hits, queried, preemptions):
        tenants = [{"tenant_id": name, "service": units} for name, units in service.items()]
        replica = {
            "replica": "r",
            "prefix_hit_tokens": hits,
            "prefix_queried_tokens": queried,
            "preemptions": preemptions,
        }
        return {"pools": [{"pool": "p", "tenants": tenants, "replicas": [replica]}]}

    before = look({"a": 100.0, "b": 50.0}, 10, 100, 3)
    (pool,) = frame(before, look({"a": 130.0, "b": 60.0, "c": 60.0}, 40, 150, 5), 1.0)["pools"]
    assert [one["share"] for one in pool["tenants"]] == [0.3, 0.1, 0.6]
    assert (pool["replicas"][0]["hit_rate"], pool["replicas"][0]["preempted"]) == (0.6, 2)
    (pool,) = frame(before, look({"a": 10.0, "b": 50.0}, None, None, None), 1.0)["pools"]
    assert [one["share"] for one in pool["tenants"]] == [1.0, 0.0]
    assert (pool["replicas"][0]["hit_rate"], pool["replicas"][0]["preempted"]) == (None, None)
    (pool,) = frame(before, before, 1.0)["pools"]
    assert [one["share"] for one in pool["tenants"]] == [None, None]


def test_figures_are_read_by_their_whole_names():
    page = (
        "# TYPE evenhand_engine_requests_running gauge\n"
        "evenhand_engine_requests_running 3.0\n"
        'evenhand_engine_kv_blocks{state="free"} 7\n'
        "evenhand_engine_kv_usage_ratio 0.25 1700000000000\n"
    )
    assert dict(figures(page)) == {"running": 3.0, "kv_usage": 0.25}
