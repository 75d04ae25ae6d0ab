"""The engines that are measured against each other: ours over its HTTP API, peers in processes.

A contestant is stopped (SIGSTOP) whenever it is not its turn, so that no idle thread of one takes
time from another.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import local_engine

ROOT = Path(__file__).resolve().parents[1]
PEERS_VARIABLE = "EVENHAND_BENCH_PEERS"
DEFAULT_PEERS = ROOT / ".venv-peers" / "bin" / "python"

Prompts = list[list[int]]


@dataclass(frozen=True)
class Contestant:
    """A loaded engine. `rate(prompts, n)`: output tokens per second of one round of requests."""

    about: str
    rate: Callable[[Prompts, int], float]
    pid: int

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Within this it may run."""
        os.kill(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGSTOP)


Start = Callable[[Path], AbstractContextManager[Contestant]]


def evenhand(**settings: str) -> Start:
    """Our engine with these variables set."""

    @contextlib.contextmanager
    def start(model: Path) -> Iterator[Contestant]:
        with local_engine.engine(model, **settings) as engine, _asleep(engine.process.pid):

            def rate(prompts: Prompts, new_tokens: int) -> float:
                return asyncio.run(_round(engine.socket, prompts, new_tokens))

            yield Contestant("evenhand", rate, engine.process.pid)

    return start


def peer(module: str, python: str) -> Start:
    """The engine that a module of ours wraps, run by an interpreter that has it."""

    @contextlib.contextmanager
    def start(model: Path) -> Iterator[Contestant]:
        process = subprocess.Popen(
            [python, "-m", f"benchmarks.{module}", str(model)],
            cwd=ROOT,
            # As the peer comes: what `make` says about waiting threads is meant for ours.
            env={k: v for k, v in os.environ.items() if not k.startswith("OMP_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("pipes were asked for")
        asked, answered = process.stdin, process.stdout

        def rate(prompts: Prompts, new_tokens: int) -> float:
            print(json.dumps({"prompts": prompts, "new_tokens": new_tokens}), file=asked)
            asked.flush()
            done = json.loads(answered.readline())
            if done["output_tokens"] != len(prompts) * new_tokens:
                raise RuntimeError(f"{module} gave {done['output_tokens']} tokens")
            return float(done["output_tokens"] / done["seconds"])

        with process:
            ready = answered.readline()
            if not ready:
                raise RuntimeError(f"{module} did not start; run it by itself to see why")
            with _asleep(process.pid):
                yield Contestant(json.loads(ready)["ready"], rate, process.pid)
            asked.close()

    return start


def peers() -> tuple[dict[str, Start], list[str]]:
    """The peers that are here, and the names of those that are not."""
    here: dict[str, Start] = {}
    absent = []
    for name, module, package, python in (
        ("llama.cpp", "peer_llamacpp", "xllamacpp", _peers_python()),
        ("openvino_genai", "peer_openvino", "openvino_genai", _peers_python()),
        ("transformers_generate_batch", "peer_transformers", "transformers", sys.executable),
    ):
        if python is not None and _has(python, package):
            here[name] = peer(module, python)
        else:
            absent.append(name)
    return here, absent


def _peers_python() -> str | None:
    """An interpreter whose packages are not this project's: `make bench-peers` makes one."""
    given = os.environ.get(PEERS_VARIABLE)
    if given:
        return given
    return str(DEFAULT_PEERS) if DEFAULT_PEERS.exists() else None


def _has(python: str, package: str) -> bool:
    code = f"import sys, importlib.util; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


@contextlib.contextmanager
def _asleep(pid: int) -> Iterator[None]:
    """Stopped but for its turns; awake again at the end, so that it can be told to exit."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _round(socket: Path, prompts: Prompts, new_tokens: int) -> float:
    async with local_engine.session(socket) as http:
        name = await local_engine.model_id(http)
        began = time.perf_counter()
        timings = await asyncio.gather(
            *(local_engine.complete(http, name, prompt, new_tokens) for prompt in prompts)
        )
        return sum(t.output_tokens for t in timings) / (time.perf_counter() - began)
