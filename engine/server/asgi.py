"""The few pieces of plain ASGI that the routes share: bounded bodies, JSON answers, disconnects."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import orjson
from starlette.types import Receive, Scope, Send

from engine.protocol.errors import InvalidRequest
from engine.server.errors import BodyTooLarge, BodyTooSlow, ErrorAnswer

MAX_BODY_BYTES: Final = 2 * 1024 * 1024
BODY_DEADLINE_S: Final = 30.0

Headers = Iterable[tuple[bytes, bytes]]


class ClientGone(Exception):  # noqa: N818 - an event, and nobody is left to be told
    """The connection closed before the request was read."""


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header that may come once; None when absent. Raises InvalidRequest."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise InvalidRequest(f"The header {name.decode('ascii')} was sent more than once.")
    return values[0].decode("latin-1") if values else None


def trace_headers(scope: Scope) -> dict[str, str]:
    """The W3C trace headers, for `extract`."""
    return {
        name.decode("ascii"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name in {b"traceparent", b"tracestate"}
    }


async def read_body(scope: Scope, receive: Receive, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The whole request body. Raises BodyTooLarge, BodyTooSlow, ClientGone."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge
    try:
        async with asyncio.timeout(BODY_DEADLINE_S):
            return await _read(receive, max_bytes)
    except TimeoutError:
        raise BodyTooSlow from None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return bytes(body)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client closed the connection (or the response is complete)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start(send: Send, status: int, content_type: str, headers: Headers = ()) -> None:
    """Begin a response whose length is not known yet."""
    sent = [(b"content-type", content_type.encode("latin-1")), *headers]
    await send({"type": "http.response.start", "status": status, "headers": sent})


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: str, headers: Headers = ()
) -> None:
    """A whole response."""
    length = (b"content-length", str(len(body)).encode("ascii"))
    await start(send, status, content_type, [length, *headers])
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, payload: Any, headers: Headers = ()) -> None:
    """A whole response of JSON."""
    await send_bytes(send, status, orjson.dumps(payload), "application/json", headers)


async def send_error(send: Send, error: ErrorAnswer, headers: Headers = ()) -> None:
    """A whole error response."""
    await send_json(send, error.status, error.body, [*error.headers, *headers])
