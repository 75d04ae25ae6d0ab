"""The engine's internal HTTP API: an allow-list of routes, and an OpenAI error object for the rest.

Plain ASGI throughout: a middleware that wraps responses would hide disconnects. Who may connect is
decided by the socket; a request must still bring its cache namespace.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from engine.protocol import shapes
from engine.protocol.errors import InvalidRequest
from engine.protocol.strict_json import parse_object
from engine.protocol.telemetry import PROMETHEUS_CONTENT_TYPE, Telemetry
from engine.protocol.wire import (
    parse_chat,
    parse_completion,
    parse_erase,
    parse_pin,
    parse_tokenize,
)
from engine.server import asgi
from engine.server.answers import ChatDialect, CompletionDialect
from engine.server.errors import (
    EngineDead,
    EngineStalled,
    ErrorAnswer,
    ServerError,
    answer,
    framework_answer,
)
from engine.server.generate import Generate
from engine.server.service import EngineService
from engine.server.telemetry import EngineMetrics

log = logging.getLogger(__name__)


def create_app(service: EngineService, metrics: EngineMetrics, telemetry: Telemetry) -> ASGIApp:
    """The application around one service, whose engine loop lives as long as its lifespan."""
    views = _Views(service, telemetry)
    router = Router(
        routes=[
            _route("POST", "/v1/chat/completions", Generate(service, ChatDialect(), parse_chat)),
            _route(
                "POST", "/v1/completions", Generate(service, CompletionDialect(), parse_completion)
            ),
            _route("POST", "/tokenize", views.tokenize),
            _route("POST", "/prefix/pin", views.pin),
            _route("POST", "/cache/erase", views.erase),
            _route("POST", "/abort/{request_id:path}", views.abort),
            _route("GET", "/v1/models", views.models),
            _route("GET", "/capacity", views.capacity),
            _route("GET", "/health", views.health),
            _route("GET", "/metrics", views.metrics),
        ],
        redirect_slashes=False,
        lifespan=lambda _: _engine_running(service),
    )
    return ErrorBoundary(router, metrics)


@contextlib.asynccontextmanager
async def _engine_running(service: EngineService) -> AsyncIterator[None]:
    service.loop.start()
    try:
        yield
    finally:
        await service.loop.stop()


class _Endpoint:
    """Makes a route of a bound method: Starlette would call it with a request, not as ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _route(method: str, path: str, app: ASGIApp) -> Route:
    return Route(path, _Endpoint(app), methods=[method])


class ErrorBoundary:
    """Turns every exception into one answer of the error table; what nobody foresaw is logged."""

    def __init__(self, app: ASGIApp, metrics: EngineMetrics) -> None:
        self._app: Final = app
        self._metrics: Final = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102 - ASGI's
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["app"] = self  # with it the router raises HTTPException and writes nothing itself
        started = False

        async def watched(message: AsgiMessage) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asgi.ClientGone:
            return
        except Exception as error:
            if not isinstance(error, (HTTPException, InvalidRequest, ServerError)):
                log.exception("a request failed for a reason nobody foresaw")
                self._metrics.request_error("http")
            if started:
                log.warning("a response was cut short: %s", type(error).__name__)
                return
            await asgi.send_error(send, _answer(error))


def _answer(error: Exception) -> ErrorAnswer:
    if isinstance(error, HTTPException):
        return framework_answer(error.status_code, (error.headers or {}).get("Allow"))
    return answer(error)


class _Views:
    """The small routes."""

    def __init__(self, service: EngineService, telemetry: Telemetry) -> None:
        self._service = service
        self._telemetry = telemetry

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Token ids of text or of chat messages."""
        request = parse_tokenize(parse_object(await asgi.read_body(scope, receive)))
        self._service.require_model(request.model)
        tokens = await self._service.encode(request.prompt)
        limit = self._service.limits.max_model_len
        body = {"tokens": tokens, "count": len(tokens), "max_model_len": limit}
        await asgi.send_json(send, 200, body)

    async def pin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pin a prompt's cached blocks, or unpin them."""
        request = parse_pin(parse_object(await asgi.read_body(scope, receive)))
        await asgi.send_json(send, 200, await self._service.pin(request))

    async def erase(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Erase a namespace; 409 while a running request uses it."""
        request = parse_erase(parse_object(await asgi.read_body(scope, receive)))
        await asgi.send_json(send, 200, await self._service.erase(request))

    async def abort(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """End a request in any state; idempotent. The blocks are back when the answer is sent."""
        request_id = scope["path_params"]["request_id"]
        aborted = await self._service.loop.abort_id(request_id)
        await asgi.send_json(send, 200, {"id": request_id, "aborted": aborted})

    async def models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """The one model."""
        card = shapes.model_card(self._service.model_id, self._service.created)
        card["max_model_len"] = self._service.limits.max_model_len
        await asgi.send_json(send, 200, shapes.model_list([card]))

    async def capacity(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """What fits and what is there now; `sequence` grows with every change."""
        await asgi.send_json(send, 200, self._service.capacity())

    async def health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Liveness: 503 when the engine thread ended or makes no progress."""
        if not self._service.loop.alive:
            raise EngineDead
        if self._service.loop.snapshot.stalled:
            raise EngineStalled
        status = "draining" if self._service.draining else "ok"
        await asgi.send_json(send, 200, {"status": status})

    async def metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Prometheus' text format."""
        text = self._telemetry.prometheus_text()
        await asgi.send_bytes(send, 200, text, PROMETHEUS_CONTENT_TYPE)
