"""Seconds until a start answers, the first time and later, and the engine's peak memory.

The first start is that of a fresh installation: our modules not yet compiled to bytecode, an empty
data directory but for the model, the model's pages not in memory (other libraries' may be). Later
starts follow in the same place. Answering means that `GET /health` does.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import local_engine
from benchmarks.figures import prompts, summary

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "fairness", "gateway", "kernels", "migrations", "tenancy")
LATER_STARTS = 3
REQUESTS = 16
NEW_TOKENS = 16
POLL_S = 0.01
DEADLINE_S = 300
NAME = "smollm2-135m"


def run(model: Path) -> dict[str, object]:
    """The engine alone, then `evenhand serve`, each in an installation of its own."""
    with installation(model) as place:
        first = place.engine_start()
        later = [place.engine_start() for _ in range(LATER_STARTS)]
        memory = place.engine_memory()
    with installation(model) as place:
        first_serve = place.serve_start()
        later_serve = [place.serve_start() for _ in range(LATER_STARTS)]
    return {
        "engine": {"first_s": round(first, 2), "later_s": summary(later)},
        "serve": {"first_s": round(first_serve, 2), "later_s": summary(later_serve)},
        "engine_peak_mb": memory,
    }


@dataclass(frozen=True)
class Installation:
    """A copy of the program in a folder of its own, with a data directory."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """This process's, with everything of ours pointing into the copy."""
        return local_engine.environment() | {
            "EVENHAND_DATA_DIR": str(self.root / "data"),
            "PYTHONPATH": str(self.root),
        }

    def engine_start(self) -> float:
        """Seconds until an engine answers; it is stopped again."""
        began = time.perf_counter()
        with self._engine():
            return time.perf_counter() - began

    def engine_memory(self) -> dict[str, float]:
        """Peak resident memory once loaded, and after requests that run together; in MB."""
        with self._engine() as (process, path):
            loaded = peak_mb(process.pid)
            asyncio.run(_requests(path))
            return {"loaded": loaded, f"after_{REQUESTS}_requests": peak_mb(process.pid)}

    def serve_start(self) -> float:
        """Seconds until everything of `evenhand serve` answers; it is stopped again."""
        began = time.perf_counter()
        ports = ["--port", "0", "--admin-port", "0"]
        with self._process(["serve", "--json", *ports], stdout=subprocess.PIPE) as process:
            if process.stdout is None:
                raise RuntimeError("a pipe was asked for")
            url = json.loads(process.stdout.readline())["url"]
            with urllib.request.urlopen(url.removesuffix("/v1") + "/health") as answer:
                if answer.status != 200:
                    raise RuntimeError(f"/health answers {answer.status}")
            return time.perf_counter() - began

    @contextlib.contextmanager
    def _engine(self) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        path = self.root / "engine.sock"
        options = ["engine", "--model", NAME, "--uds", str(path)]
        with self._process(options, stdout=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + DEADLINE_S
            while not _is_healthy(path):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the engine does not start")
                time.sleep(POLL_S)
            yield process, path

    @contextlib.contextmanager
    def _process(self, arguments: list[str], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli.main", *arguments],
            cwd=self.root,
            env=self.environment,
            stdout=stdout,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def installation(model: Path) -> Iterator[Installation]:
    """The program's files without what earlier starts left, and the model, on disk only."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / package, root / package, ignore=ignored)
        models = root / "data" / "models"
        models.mkdir(parents=True)
        (root / "data").chmod(0o700)
        copy = models / f"{NAME}.gguf"
        shutil.copyfile(model, copy)
        _drop_pages(copy)
        yield Installation(root)


def peak_mb(pid: int) -> float:
    """The largest resident set a process ever had, pages of mapped files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    raise RuntimeError("the kernel does not say VmHWM")


def _drop_pages(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _is_healthy(path: Path) -> bool:
    ask = b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
            connection.sendall(ask)
            return connection.recv(32).startswith(b"HTTP/1.1 200")
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            return False


async def _requests(path: Path) -> None:
    async with local_engine.session(path) as http:
        batch = prompts(REQUESTS, seed=1)
        await asyncio.gather(
            *(local_engine.complete(http, NAME, prompt, NEW_TOKENS) for prompt in batch)
        )
