"""The edge: what reaches the application is bounded in bytes and time, and every answer is ours.

Two parts. `guarded_protocol` makes the uvicorn protocol that caps what httptools does not: header
bytes and fields, slow headers, slow bodies, slow readers; it answers broken HTTP with an OpenAI
error object. `Guard` is the outermost ASGI layer: it names the request, strips inbound identity
headers, and turns every exception into an answer without exception text. The Host header is never
used: routing and authorisation read only `scope["path"]`.
"""

import asyncio
import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from engine.protocol.errors import InvalidRequest
from gateway.errors import (
    Answer,
    BadHttp,
    BodyTooLarge,
    GatewayError,
    HeadersTooLarge,
    RequestTimeout,
    answer,
    internal_body,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

# Identity, fairness and engine headers that upstreams or other gateways believe. None is forwarded
# (engine requests are built from nothing of the client's), but a client that sends one is counted.
STRIPPED = frozenset(
    {
        b"x-tenant-id",
        b"x-tenant",
        b"x-project-id",
        b"x-user-id",
        b"x-api-key-id",
        b"x-evenhand-tenant",
        b"x-evenhand-key",
        b"x-evenhand-priority",
        b"x-evenhand-weight",
        b"x-evenhand-namespace",
        b"x-gateway-inference-fairness-id",
        b"x-gateway-inference-objective",
        b"x-cache-salt",
        b"x-priority",
        b"x-request-priority",
        b"x-fairness-id",
    }
)
# Bytes of an already refused body that are read and dropped, so that a client which sends
# everything before it reads still gets to see the refusal instead of a connection reset.
DRAIN_FACTOR = 8


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """What one connection may cost; seconds and bytes."""

    max_body_bytes: int = 2 * 1024 * 1024
    max_header_bytes: int = 16 * 1024
    max_header_fields: int = 64
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0


@dataclass(slots=True)
class RequestRecord:
    """What is known of one HTTP request for metrics and logs; labels come from closed sets."""

    request_id: str
    started: float
    route: str = "other"
    model: str = "none"
    tenant: str = "none"
    status: int = 0
    disconnected: bool = False
    error_type: str | None = None
    upstream_s: float = field(default=0.0)
    queue_s: float = field(default=0.0)


def new_request_id() -> str:
    """128 random bits: nothing a client sends can name or guess another request."""
    return f"req_{secrets.token_hex(16)}"


def raw_response(refusal: Answer, request_id: str) -> bytes:
    """A whole HTTP/1.1 response for requests that never become one of the application's."""
    head = [STATUS_LINE[refusal.status]]
    for name, value in (*refusal.headers, (b"x-request-id", request_id.encode())):
        head += [name, b": ", value, b"\r\n"]
    head.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(refusal.body))
    return b"".join((*head, refusal.body))


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with caps; `limits` and `on_refused` are set by a subclass."""

    limits = EdgeLimits()
    on_refused: Callable[[int], None] = staticmethod(lambda _status: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: GatewayError | None = None
        self._in_headers = True
        self._pending_bytes = 0
        self._header_bytes = 0
        self._body_bytes = 0
        # None before the first request, whatever uvicorn's annotation says.
        self.cycle: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    # --- bytes in ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer that sends nothing is given the time of a header section."""
        super().connection_made(transport)
        self._arm(self.limits.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then bound what is still unfinished, in bytes and in time."""
        if self._refusal is not None:
            return
        super().data_received(data)
        if self._refusal is not None or self.transport.is_closing():
            return
        if self._in_headers:
            # What is left after a parse is an unfinished header section, all of it.
            self._pending_bytes += len(data)
            if self._pending_bytes > self.limits.max_header_bytes:
                self._refuse(HeadersTooLarge("The request headers are too large."))
            elif self.cycle is None or self.cycle.response_complete:
                self._arm(self.limits.header_timeout_s)
        elif self.cycle.more_body and not self.pipeline:
            self._arm(self.limits.body_timeout_s)

    def on_message_begin(self) -> None:
        """A new request: its own counts."""
        super().on_message_begin()
        self._in_headers = True
        self._pending_bytes = self._header_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """The request target counts as header bytes."""
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count every field, trailers too."""
        super().on_header(name, value)
        self._count_header(len(name) + len(value) + 4)
        if len(self.headers) > self.limits.max_header_fields:
            self._raise(HeadersTooLarge("The request has too many header fields."))

    def on_headers_complete(self) -> None:
        """Refuse ambiguous framing and identity before the application sees the request."""
        self._in_headers = False
        self._disarm()
        if sum(name == b"host" for name, _ in self.headers) > 1:
            self._raise(BadHttp("The request has more than one Host header."))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Drop what the application refused, up to a limit; then hang up."""
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.max_body_bytes * DRAIN_FACTOR:
            self._raise(BodyTooLarge("The request body is too large."))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole: no deadline is left to keep."""
        self._disarm()
        self._in_headers = True
        self._pending_bytes = 0
        super().on_message_complete()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.limits.max_header_bytes:
            self._raise(HeadersTooLarge("The request headers are too large."))

    def _raise(self, refusal: GatewayError) -> None:
        """Stop the parser from inside one of its callbacks; `send_400_response` answers."""
        self._refusal = refusal
        raise httptools.HttpParserError

    def send_400_response(self, msg: str) -> None:
        """Our error object in place of uvicorn's text, for whatever the parser rejected."""
        del msg
        self._refuse(self._refusal or BadHttp("The request is not valid HTTP."))

    def _refuse(self, refusal: GatewayError) -> None:
        self._refusal = refusal
        self._disarm()
        self.on_refused(answer(refusal).status)
        responding = self.cycle is not None and self.cycle.response_started
        if not responding or self.cycle.response_complete:
            # Behind a complete answer to the same request nothing more may be said.
            if not (responding and self.cycle.more_body):
                self.transport.write(raw_response(answer(refusal), new_request_id()))
            self.transport.close()
        else:
            self.transport.abort()

    # --- time --------------------------------------------------------------------------------

    def _arm(self, seconds: float) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        if self.cycle is None and not self._pending_bytes:
            self.transport.close()
        else:
            self._refuse(RequestTimeout("The request was not received in time."))

    def pause_writing(self) -> None:
        """The peer stopped reading: it has `write_timeout_s` to go on, then it is cut off."""
        super().pause_writing()
        self._write_deadline = self.loop.call_later(
            self.limits.write_timeout_s, self.transport.abort
        )

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._stop_write_deadline()
        super().resume_writing()

    def _stop_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives its connection."""
        self._disarm()
        self._stop_write_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """A pipelined request whose body is still to come starts its clock when its turn comes."""
        super().on_response_complete()
        if not self.cycle.response_complete and self.cycle.more_body:
            self._arm(self.limits.body_timeout_s)


def guarded_protocol(
    limits: EdgeLimits, on_refused: Callable[[int], None]
) -> type[GuardedProtocol]:
    """The protocol class for one listener, with its limits bound."""
    return type(
        "BoundGuardedProtocol",
        (GuardedProtocol,),
        {"limits": limits, "on_refused": staticmethod(on_refused)},
    )


async def respond(send: Send, reply: Answer) -> None:
    """Send a whole answer."""
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The body, counted as it is read. Raises `BodyTooLarge`, or `ClientGone` if it breaks off."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise BodyTooLarge(f"The request body is larger than {limit} bytes.")
    message = await receive()
    body: bytes = message.get("body", b"")
    parts = [body]
    size = len(body)
    while message["type"] == "http.request" and message.get("more_body", False) and size <= limit:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if message["type"] == "http.disconnect":
        raise ClientGone
    if size > limit:
        raise BodyTooLarge(f"The request body is larger than {limit} bytes.")
    return body if len(parts) == 1 else b"".join(parts)


class ClientGone(Exception):  # noqa: N818 - an event, not an error
    """The client closed the connection: nothing more can be sent to it."""


class Guard:
    """The outermost layer of a listener; `finished` sees each request's record exactly once."""

    def __init__(
        self,
        app: App,
        *,
        finished: Callable[[RequestRecord], None] = lambda _record: None,
        stripped: Callable[[str], None] = lambda _header: None,
    ) -> None:
        self._app = app
        self._finished = finished
        self._stripped = stripped

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and always answer it, unless the client is gone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(new_request_id(), time.perf_counter())
        scope["state"]["record"] = record
        self._strip(scope)
        identity = (b"x-request-id", record.request_id.encode())

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), identity]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except ClientGone:
            record.disconnected = True
        except (GatewayError, InvalidRequest) as error:
            await self._answer(record, send_named, answer(error))
        except Exception as error:  # noqa: BLE001 - the one boundary; converted, never hidden
            log.error("request %s failed\n%s", record.request_id, where(error))
            body = internal_body(record.request_id)
            await self._answer(
                record, send_named, Answer(500, body, [(b"content-type", b"application/json")])
            )
        finally:
            self._finished(record)

    @staticmethod
    async def _answer(record: RequestRecord, send: Send, reply: Answer) -> None:
        if record.status:
            # Headers are out: the only honest end is to break the connection.
            raise ConnectionAbortedError("failed after the response had started") from None
        await respond(send, reply)

    def _strip(self, scope: Scope) -> None:
        headers = scope["headers"]
        found = [name for name, _ in headers if name in STRIPPED]
        if found:
            scope["headers"] = [pair for pair in headers if pair[0] not in STRIPPED]
            for name in found:
                self._stripped(name.decode("ascii"))


def where(error: BaseException) -> str:
    """Types and places of an exception and its causes, without messages: they may quote a prompt."""
    lines: list[str] = []
    current: BaseException | None = error
    while current is not None and len(lines) < 200:
        lines.append(type(current).__qualname__)
        lines.extend(
            f"  {frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(current.__traceback__)
        )
        current = current.__cause__ or current.__context__
    return "\n".join(lines)
