"""`POST /v1/chat/completions` and `/v1/completions`: streamed or whole, aborted on disconnect.

The disconnect is watched from submission to the last byte, whatever the handler waits for, and
aborts in the engine at once. Response headers are held back until the request is admitted, so a
refusal keeps its own status.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from engine.protocol.requests import ChatRequest, CompletionRequest
from engine.protocol.strict_json import parse_object
from engine.protocol.telemetry import extract
from engine.protocol.wire import Audience
from engine.server import asgi
from engine.server.answers import Dialect
from engine.server.reply import Reply
from engine.server.service import EngineService, Ticket

JsonObject = dict[str, Any]
Parse = Callable[[JsonObject, Audience], ChatRequest | CompletionRequest]


class Generate:
    """One generation route as an ASGI application."""

    def __init__(self, service: EngineService, dialect: Dialect, parse: Parse) -> None:
        self._service = service
        self._dialect = dialect
        self._parse = parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: D102 - ASGI's
        body = await asgi.read_body(scope, receive)
        request = self._parse(parse_object(body), Audience.ENGINE)
        ticket = await self._service.submit(
            request,
            self._dialect,
            named=asgi.header(scope, b"x-request-id"),
            trace=extract(asgi.trace_headers(scope)),
        )
        watcher = asyncio.create_task(self._abort_on_disconnect(receive, ticket))
        try:
            reply = Reply(self._service, self._dialect, ticket, request.delivery, send)
            await (reply.stream() if request.delivery.stream else reply.whole())
        finally:
            watcher.cancel()
            self._service.release(ticket)

    async def _abort_on_disconnect(self, receive: Receive, ticket: Ticket) -> None:
        await asgi.wait_for_disconnect(receive)
        self._service.release(ticket)
