"""The gateway alone, everything on, in front of an instant upstream: wrk with 16 connections.

wrk, the gateway and the upstream share this machine's cores, so the figure is what one machine
gives, not what the gateway's core could do alone. The upstream alone, measured in the same run,
says how much of it is the ruler's.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CONNECTIONS = 16
SECONDS = 10
SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer {key}"
wrk.body = [[{body}]]
local failed = 0
function response(status)
  if status ~= 200 then failed = failed + 1; wrk.thread:set("failed", failed) end
end
local threads = {{}}
function setup(thread) thread:set("failed", 0); table.insert(threads, thread) end
function done(summary, latency)
  local failures = 0
  for _, thread in ipairs(threads) do failures = failures + (thread:get("failed") or 0) end
  local shape = '"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "failed": %d'
  io.write(string.format('RESULT {{' .. shape .. '}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    failures + summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
"""
MESSAGES = [{"role": "user", "content": "Please answer this short question about nothing at all."}]


def run(model: Path) -> dict[str, object]:
    """Requests per second and latency at 16 connections, whole and streamed; needs wrk."""
    if shutil.which("wrk") is None:
        return {"wrk": "absent"}
    with tempfile.TemporaryDirectory() as folder, _gateway(Path(folder), model) as (url, key):
        figures: dict[str, object] = {}
        for name, stream in (("whole", False), ("streamed", True)):
            body = json.dumps(
                {
                    "model": model.stem,
                    "messages": MESSAGES,
                    "max_tokens": 4,
                    "stream": stream,
                }
            )
            _wrk(Path(folder), f"{url}/chat/completions", key, body, seconds=2)
            figures[name] = _wrk(Path(folder), f"{url}/chat/completions", key, body, SECONDS)
        return {"connections": CONNECTIONS, "seconds": SECONDS, "workers": 1} | figures


def _wrk(folder: Path, url: str, key: str, body: str, seconds: int) -> dict[str, float]:
    script = folder / "post.lua"
    script.write_text(SCRIPT.format(key=key, body=body))
    done = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(script), url],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = re.search(r"RESULT (.*)", done.stdout)
    if found is None:
        raise RuntimeError(done.stdout)
    raw = json.loads(found.group(1))
    return {
        "requests_per_s": round(raw["requests"] / raw["duration_us"] * 1e6, 1),
        "p50_ms": raw["p50_us"] / 1e3,
        "p99_ms": raw["p99_us"] / 1e3,
        "failed": raw["failed"],
    }


@contextlib.contextmanager
def _gateway(folder: Path, model: Path) -> Iterator[tuple[str, str]]:
    """A gateway with one tenant whose limits are on but out of the way; yields its URL and key."""
    upstream = str(folder / "upstream.sock")
    port, admin_port = _free_port(), _free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("EVENHAND_", "OTEL_"))}
    environment["EVENHAND_DATA_DIR"] = str(folder / "data")
    instant = subprocess.Popen([sys.executable, "-m", "benchmarks.instant_upstream", upstream])
    gateway = None
    try:
        _evenhand(environment, "migrate")
        _evenhand(environment, "admin", "tenant", "create", "bench")
        key = json.loads(
            _evenhand(environment, "admin", "key", "create", "--tenant", "bench", "--json")
        )["key"]
        limits = {"--rpm": 10**8, "--tpm": 10**12, "--concurrency": 64, "--max-queued": 1000}
        options = [text for name, value in limits.items() for text in (name, str(value))]
        _evenhand(environment, "admin", "quota", "set", "--tenant", "bench", *options)
        command = [sys.executable, "-m", "gateway.cli.main", "gateway", "--engine", upstream]
        command += ["--model", str(model), "--port", str(port), "--admin-port", str(admin_port)]
        gateway = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        _until_ready(f"http://127.0.0.1:{admin_port}/readyz")
        yield f"http://127.0.0.1:{port}/v1", key
    finally:
        for process in (gateway, instant):
            if process is not None:
                process.terminate()
                process.wait(60)


def _evenhand(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _until_ready(url: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
            if answer.status == 200:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(url)
        time.sleep(0.1)
