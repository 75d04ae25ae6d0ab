"""uvicorn as this engine needs it: its error answers in our shape, its signals a drain."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

import orjson
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.protocol.errors import error_object
from engine.server.errors import EngineDraining
from engine.server.service import EngineService

log = logging.getLogger(__name__)

KEEP_ALIVE_S: Final = 75
"""Longer than any client pools a connection, so that none is closed under a new request."""
FORCED_EXIT_S: Final = 2.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MALFORMED: Final = orjson.dumps(
    error_object("The request is not valid HTTP.", "invalid_request_error")
)


class EngineHttpProtocol(HttpToolsProtocol):
    """Answers what is not HTTP with an error object; uvicorn's own answer is plain text."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's signature
        """Say so and close."""
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(_MALFORMED)
        )
        self.transport.write(head + _MALFORMED)
        self.transport.close()


class EngineServer(uvicorn.Server):
    """Serves one engine on a bound socket until SIGTERM, SIGINT or `request_stop`.

    Then new requests are refused, begun ones finish until `drain_deadline_s`, and what is left
    fails with an error event. `serve` returns normally; it raises nothing for a signal.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: EngineService,
        drain_deadline_s: float,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=EngineHttpProtocol,
                ws="none",
                lifespan="on",
                access_log=False,
                server_header=False,
                log_config=None,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(drain_deadline_s + FORCED_EXIT_S),
            )
        )
        self._service = service
        self._drain_deadline_s = drain_deadline_s
        self._on_ready = on_ready

    def request_stop(self) -> None:
        """Begin the drain; may be called from a signal handler or another thread."""
        self._service.drain()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, then tell that requests are answered."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, with the drain deadline's error events before its force."""
        self._service.drain()
        deadline = asyncio.get_running_loop().call_later(self._drain_deadline_s, self._fail_all)
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()

    def _fail_all(self) -> None:
        self._service.loop.fail_all(EngineDraining())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on the first signal, end at once on the next; uvicorn would raise them again."""

        def stop(_number: int, _frame: object) -> None:
            if self.should_exit:
                self._fail_all()
            self.request_stop()

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return
        before = {number: signal.signal(number, stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
