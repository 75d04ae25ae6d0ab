"""The outermost ASGI layer of a listener: every request is named and every request is answered.

`Guard` strips inbound identity headers and turns every exception into an answer without exception
text. The Host header is never used: routing and authorisation read only `scope["path"]`.
"""

import logging
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from engine.protocol.errors import InvalidRequest
from gateway.errors import (
    Answer,
    BodyTooLarge,
    GatewayError,
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
            log.error("request %s failed\n%s", record.request_id, where(error))  # noqa: TRY400
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
    """Types and places of an exception and its causes; messages may quote a prompt."""
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
