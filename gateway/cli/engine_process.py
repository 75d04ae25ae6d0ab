"""A local engine as a child process: started, watched, restarted and stopped by `evenhand serve`.

The child runs in its own session, so a terminal's Ctrl-C reaches only the gateway, which drains
first. Its standard input is a pipe from here: when this process dies, however it dies, the pipe
closes and the engine exits.
"""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0
STABLE_AFTER_S = 60.0
STOP_DEADLINE_S = 40.0


class EngineFailed(Exception):  # noqa: N818 - reads as what happened
    """The engine process ended before it ever answered."""


class EngineProcess:
    """Owns one engine process listening on `socket`; `arguments` follow `evenhand engine`."""

    def __init__(self, socket: Path, arguments: Sequence[str]) -> None:
        self._socket = socket
        self._command = [
            sys.executable,
            "-m",
            "gateway.cli.main",
            "engine",
            "--uds",
            str(socket),
            "--stop-with-stdin",
            *arguments,
        ]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the child; it answers once the model is loaded."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,  # only its "ready": `serve` says that of the whole
            start_new_session=True,
        )

    async def wait_ready(self, poll_s: float = 0.05) -> None:
        """Return when the socket accepts a connection; raise `EngineFailed` if the child ends."""
        while True:
            process = self._running()
            if process.returncode is not None:
                raise EngineFailed(f"the engine exited with status {process.returncode}")
            if await _accepts(self._socket):
                return
            await asyncio.sleep(poll_s)

    @contextlib.asynccontextmanager
    async def supervised(self) -> AsyncIterator[None]:
        """Within this, the child is restarted whenever it ends."""
        keeper = asyncio.get_running_loop().create_task(self._supervise())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _supervise(self) -> None:
        """Restart the child, waiting longer after each quick failure."""
        loop = asyncio.get_running_loop()
        backoff_s = FIRST_BACKOFF_S
        while True:
            started = loop.time()
            status = await self._running().wait()
            if loop.time() - started > STABLE_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            log.error("the engine exited with status %d; restarting in %.0f s", status, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
            await self.start()

    async def stop(self) -> None:
        """Ask the child to drain and exit; kill it at the deadline."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_DEADLINE_S)
        except TimeoutError:
            log.warning("the engine did not stop in %.0f s and was killed", STOP_DEADLINE_S)
            process.kill()
            await process.wait()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the engine process was never started")
        return self._process


async def _accepts(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    writer.close()
    return True
