"""One gateway process from start to a clean exit: listeners, signals, drain.

SIGINT or SIGTERM: admit nothing more, let what runs finish until the drain deadline, settle, write
the usage rows, close, return. A second signal cuts at once.
"""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from gateway.guard import App
from gateway.listeners import Listeners, bound
from gateway.logs import configure_logging
from gateway.protocol import EdgeLimits, guarded_protocol
from gateway.settings import Settings
from gateway.wiring import Gateway, create_app

BACKLOG = 2048
CLOSE_DEADLINE_S = 5
# New objects before the collector looks; a request makes a few hundred, nearly all of them acyclic.
GC_NEW_OBJECTS = 10_000


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a gateway answers."""

    url: str
    admin_url: str
    admin_socket: Path


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: this process decides when to stop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_forever(settings: Settings, **parts: Any) -> None:
    """`run` on a uvloop event loop of its own, in a process that does nothing else."""
    gc.collect()
    gc.freeze()  # what was imported stays for good: the collector need not walk it again
    gc.set_threshold(GC_NEW_OBJECTS, *gc.get_threshold()[1:])
    uvloop.run(run(settings, **parts))


async def run(
    settings: Settings,
    *,
    listeners: Listeners | None = None,
    on_ready: Callable[[Endpoints], None] = lambda _endpoints: None,
    stop: asyncio.Event | None = None,
    **parts: Any,
) -> None:
    """Serve until a signal (or `stop`) and return after the drain; `parts` go to `create_app`.

    `on_ready` is called once all listeners answer. `listeners` bound before are used and left to
    their owner. Raises CannotListen and what `create_app` does.
    """
    configure_logging(settings.log_format)
    with bound(settings) if listeners is None else contextlib.nullcontext(listeners) as at:
        gateway = create_app(settings, **parts)
        try:
            await gateway.prime()
            servers = _servers(gateway, settings, at)
            endpoints = Endpoints(
                url=f"{_url(at.public)}/v1",
                admin_url=_url(at.admin),
                admin_socket=settings.admin_socket,
            )
            await _serve(gateway, settings, servers, lambda: on_ready(endpoints), stop)
        finally:
            await gateway.close()


def _servers(
    gateway: Gateway, settings: Settings, at: Listeners
) -> list[tuple[_Server, socket.socket]]:
    keep_alive_s = settings.gateway.keep_alive_s
    refused = gateway.service.metrics.refused_by_protocol
    return [
        (_server(gateway.public, gateway.limits, keep_alive_s, refused), at.public),
        (_server(gateway.admin, gateway.limits, keep_alive_s), at.admin),
        (_server(gateway.socket, gateway.limits, keep_alive_s), at.local),
    ]


async def _serve(
    gateway: Gateway,
    settings: Settings,
    servers: list[tuple[_Server, socket.socket]],
    ready: Callable[[], None],
    stop: asyncio.Event | None,
) -> None:
    stopping, hurry = stop or asyncio.Event(), asyncio.Event()
    background = gateway.background()
    serving = [asyncio.create_task(server.serve(sockets=[bound])) for server, bound in servers]
    waiting = asyncio.create_task(stopping.wait())
    try:
        with _signals(stopping, hurry) if stop is None else contextlib.nullcontext():
            await asyncio.gather(*(server.listening.wait() for server, _ in servers))
            ready()
            await asyncio.wait(
                [waiting, *background, *serving], return_when=asyncio.FIRST_COMPLETED
            )
            await gateway.drain(settings.gateway.drain_s, hurry)
            for server, _ in servers:
                server.should_exit = True
            await asyncio.gather(*serving)
    finally:
        failed = [task for task in background if task.done() and not task.cancelled()]
        for task in (waiting, *background):
            task.cancel()
        await asyncio.gather(waiting, *background, return_exceptions=True)
    for task in failed:
        task.result()  # a part that ended by itself did so with an error


@contextlib.contextmanager
def _signals(stopping: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stopping.is_set() else stopping).set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _server(
    app: App,
    limits: EdgeLimits,
    keep_alive_s: int,
    on_refused: Callable[[int], None] = lambda _status: None,
) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=guarded_protocol(limits, on_refused),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=keep_alive_s,
            timeout_graceful_shutdown=CLOSE_DEADLINE_S,
            backlog=BACKLOG,
        )
    )


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
