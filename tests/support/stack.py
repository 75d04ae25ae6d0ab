"""The product as a user starts it: `evenhand serve` in a process, the admin CLI beside it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EVENHAND = [sys.executable, "-m", "gateway.cli.main"]


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without settings that would leak into the product under test."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("EVENHAND_", "OTEL_"))
    }
    return kept | extra


def run_cli(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one `evenhand` command to its end."""
    return subprocess.run(
        [*EVENHAND, *arguments],
        cwd=ROOT,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@dataclass
class Stack:
    """A running `evenhand serve --json`; `first` is the line it printed once it answered."""

    data_dir: Path
    process: subprocess.Popen[str]
    first: dict[str, Any]
    stderr: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return str(self.first["url"])

    @property
    def admin_url(self) -> str:
        return str(self.first["admin_url"])

    @property
    def key(self) -> str:
        return str(self.first["key"])

    def admin(self, *arguments: str) -> Any:
        """`evenhand admin ... --json`, beside the running gateway."""
        done = run_cli("admin", *arguments, "--json", EVENHAND_DATA_DIR=str(self.data_dir))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def new_key(self, slug: str, *options: str) -> str:
        """A fresh tenant's key."""
        self.admin("tenant", "create", slug, *options)
        return str(self.admin("key", "create", "--tenant", slug)["key"])

    def stop(self, number: int = signal.SIGINT, timeout_s: float = 60) -> int:
        """Send a signal and wait for the exit status."""
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()


def start(data_dir: Path, model: Path, **environment: str) -> Stack:
    """Start the product on free ports and return once it answers."""
    process = subprocess.Popen(
        [
            *EVENHAND,
            "serve",
            "--json",
            "--port",
            "0",
            "--admin-port",
            "0",
            "--data-dir",
            str(data_dir),
            "--model",
            str(model),
        ],
        cwd=ROOT,
        env=clean_environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stack = Stack(data_dir, process, {})
    # Drained for as long as it runs, so that a full pipe never stops the product.
    threading.Thread(target=_drain, args=(process, stack.stderr), daemon=True).start()
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(10)
        raise AssertionError("evenhand serve ended before it answered:\n" + "".join(stack.stderr))
    stack.first.update(json.loads(line))
    return stack


def _drain(process: subprocess.Popen[str], into: list[str]) -> None:
    assert process.stderr is not None
    with contextlib.suppress(ValueError):  # closed by `stop`
        for line in process.stderr:
            into.append(line)  # noqa: PERF402 - each line shows while the product runs
