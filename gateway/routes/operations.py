"""The admin listener (metrics, readiness, pools) and the admin socket (what is left, pools).

All of it reads; nothing here changes state or shows a secret.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import orjson

from engine.protocol.errors import InvalidRequest
from engine.protocol.telemetry import PROMETHEUS_CONTENT_TYPE
from gateway.engines.port import EngineError
from gateway.errors import Answer, UpstreamFailed
from gateway.guard import App, Receive, Scope, Send, respond
from gateway.routes.inference import JSON
from gateway.routes.router import Router

TEXT = [(b"content-type", PROMETHEUS_CONTENT_TYPE.encode())]


@dataclass(frozen=True, slots=True)
class Operations:
    """What operators may ask of the process. `left` of a tenant; None when it is unknown."""

    metrics: Callable[[], bytes]
    engine_metrics: Callable[[], Awaitable[bytes]]
    reasons_not_ready: Callable[[], list[str]]
    left: Callable[[UUID], Awaitable[dict[str, int | None] | None]]
    pools: Callable[[], Awaitable[dict[str, Any]]]


def operations_app(operations: Operations) -> App:
    """The admin listener's routes."""

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await respond(send, Answer(200, operations.metrics(), TEXT))

    async def engine_metrics(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        try:
            page = await operations.engine_metrics()
        except EngineError as error:
            raise UpstreamFailed("The engine does not answer.") from error
        await respond(send, Answer(200, page, TEXT))

    async def readyz(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        reasons = operations.reasons_not_ready()
        body = orjson.dumps({"ready": not reasons, "reasons": reasons})
        await respond(send, Answer(503 if reasons else 200, body, JSON))

    return Router(
        {
            ("GET HEAD", "/metrics"): metrics,
            ("GET HEAD", "/metrics/engine"): engine_metrics,
            ("GET HEAD", "/readyz"): readyz,
            ("GET", "/pools"): _pools(operations),
        }
    )


def socket_app(operations: Operations) -> App:
    """The admin socket's routes."""

    async def left(scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        given = parse_qs(scope["query_string"].decode("latin-1")).get("tenant", [])
        try:
            (text,) = given
            tenant = UUID(text)
        except ValueError as error:
            raise InvalidRequest("tenant must be one UUID", param="tenant") from error
        await respond(send, Answer(200, orjson.dumps(await operations.left(tenant)), JSON))

    return Router({("GET", "/left"): left, ("GET", "/pools"): _pools(operations)})


def _pools(operations: Operations) -> App:
    """Both listeners': what the pools are doing."""

    async def pools(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await respond(send, Answer(200, orjson.dumps(await operations.pools()), JSON))

    return pools
