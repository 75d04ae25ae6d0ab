"""`POST /v1/chat/completions` and `/v1/completions`: streamed or whole, aborted on disconnect.

The disconnect is watched from submission to the last byte, whatever the handler waits for, and
aborts in the engine at once. Response headers are held back until the request is admitted, so a
refusal keeps its own status.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from engine.protocol import shapes, sse
from engine.protocol.requests import ChatRequest, CompletionRequest, StreamOptions
from engine.protocol.shapes import OMIT, Head, UsageMember
from engine.protocol.strict_json import parse_object
from engine.protocol.telemetry import extract
from engine.protocol.wire import Audience
from engine.server import asgi
from engine.server.answers import Dialect
from engine.server.errors import SlowReader, answer
from engine.server.service import EngineService, Ticket
from engine.server.stream import Admitted, Delta, Failed

JsonObject = dict[str, Any]
Parse = Callable[[JsonObject, Audience], ChatRequest | CompletionRequest]

_SSE_HEADERS: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


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
            reply = _Reply(self._service, self._dialect, ticket, request.delivery, send)
            await (reply.stream() if request.delivery.stream else reply.whole())
        finally:
            watcher.cancel()
            self._service.release(ticket)

    async def _abort_on_disconnect(self, receive: Receive, ticket: Ticket) -> None:
        await asgi.wait_for_disconnect(receive)
        self._service.release(ticket)


class _Reply:
    """Turns one stream of events into one HTTP response."""

    def __init__(
        self,
        service: EngineService,
        dialect: Dialect,
        ticket: Ticket,
        delivery: StreamOptions,
        send: Send,
    ) -> None:
        self._dialect = dialect
        self._ticket = ticket
        self._delivery = delivery
        self._send = send
        self._write_deadline_s = service.limits.write_deadline_s
        self._cached_tokens = 0
        self._head = Head(dialect.id_prefix + ticket.request_id, int(time.time()), service.model_id)
        self._headers = ((b"x-request-id", ticket.request_id.encode("ascii")),)

    async def whole(self) -> None:
        """One JSON body at the end."""
        texts: list[str] = []
        while True:
            match await self._ticket.stream.next():
                case Admitted(num_cached_tokens=cached):
                    self._cached_tokens = cached
                case Failed(error=error):
                    raise error
                case Delta(text=text, finish_reason=None):
                    texts.append(text)
                case Delta(text=text, output_tokens=count, finish_reason=reason):
                    texts.append(text)
                    usage = self._usage(count)
                    payload = self._dialect.whole(self._head, "".join(texts), str(reason), usage)
                    await asgi.send_json(self._send, 200, payload, self._headers)
                    return

    async def stream(self) -> None:
        """Server-sent events; the first when the request is admitted."""
        first = await self._ticket.stream.next()
        if isinstance(first, Failed):
            raise first.error
        if isinstance(first, Admitted):
            self._cached_tokens = first.num_cached_tokens
        await asgi.start(self._send, 200, sse.CONTENT_TYPE, [*_SSE_HEADERS, *self._headers])
        await self._write(self._dialect.opening(self._head, self._running_usage(0)))
        while True:
            event = await self._ticket.stream.next()
            if isinstance(event, Failed):
                await self._write(answer(event.error).body)
                return await self._end(b"")
            if isinstance(event, Delta):
                await self._write_delta(event)
                if event.finish_reason is not None:
                    return await self._close(event.output_tokens)

    async def _write_delta(self, event: Delta) -> None:
        reason = None if event.finish_reason is None else event.finish_reason.value
        usage = self._running_usage(event.output_tokens)
        await self._write(self._dialect.delta(self._head, event.text, reason, usage))

    async def _close(self, output_tokens: int) -> None:
        if self._delivery.include_usage:
            await self._write(self._dialect.closing(self._head, self._usage(output_tokens)))
        await self._end(sse.DONE)

    async def _write(self, payload: JsonObject) -> None:
        await self._send_body(sse.encode(orjson.dumps(payload)), more=True)

    async def _end(self, body: bytes) -> None:
        await self._send_body(body, more=False)

    async def _send_body(self, body: bytes, *, more: bool) -> None:
        """Raises SlowReader when the client lets the deadline pass without reading."""
        try:
            async with asyncio.timeout(self._write_deadline_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise SlowReader from None

    def _usage(self, output_tokens: int) -> JsonObject:
        return shapes.usage(self._ticket.prompt_tokens, output_tokens, self._cached_tokens)

    def _running_usage(self, output_tokens: int) -> UsageMember:
        if self._delivery.continuous_usage_stats:
            return self._usage(output_tokens)
        return None if self._delivery.include_usage else OMIT
