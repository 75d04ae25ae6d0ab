"""An engine process on a unix socket, and the one client the benchmarks measure it with."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

SALT = "B" * 43


@dataclass(frozen=True)
class LocalEngine:
    """A running engine: where it listens, and its process."""

    socket: Path
    process: subprocess.Popen[bytes]


def environment(**settings: str) -> dict[str, str]:
    """This process's environment without settings of its own, plus those given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EVENHAND_", "OTEL_"))}
    return kept | settings


@contextlib.contextmanager
def engine(model: Path, **settings: str) -> Iterator[LocalEngine]:
    """Start `evenhand engine` with these variables; it answers when it is yielded."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "engine.sock"
        command = [sys.executable, "-m", "gateway.cli.main", "engine"]
        process = subprocess.Popen(
            [*command, "--uds", str(socket), "--model", str(model)],
            env=environment(**settings),
            stdout=subprocess.DEVNULL,
        )
        try:
            asyncio.run(_until_healthy(socket, process))
            yield LocalEngine(socket, process)
        finally:
            process.terminate()
            process.wait(60)


async def _until_healthy(socket: Path, process: subprocess.Popen[bytes]) -> None:
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"the engine exited with status {process.returncode}")
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session(socket) as http, http.get("http://engine/health") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def session(socket: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A client without a connection limit, which would be a queue of its own."""
    connector = aiohttp.UnixConnector(str(socket), limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        yield http


@dataclass(frozen=True)
class Timing:
    """One streamed completion: seconds to the first token and to the end, and its counts."""

    ttft_s: float
    total_s: float
    output_tokens: int
    cached_tokens: int


async def complete(
    http: aiohttp.ClientSession, model: str, prompt: list[int], max_tokens: int
) -> Timing:
    """Ask greedily for exactly `max_tokens` and read the stream to its end."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_salt": SALT,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    began = time.perf_counter()
    first = 0.0
    usage: dict[str, Any] = {}
    async with http.post("http://engine/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(await answer.text())
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            usage = json.loads(line[6:])["usage"] or usage
            if not first and usage["completion_tokens"]:
                first = time.perf_counter() - began
    total = time.perf_counter() - began
    cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    return Timing(first, total, usage["completion_tokens"], cached)


async def model_id(http: aiohttp.ClientSession) -> str:
    """The one model the engine serves."""
    async with http.get("http://engine/v1/models") as answer:
        return str((await answer.json())["data"][0]["id"])
