"""The uvicorn protocol that bounds what one connection may cost, in bytes and in time.

httptools caps neither headers nor bodies, and uvicorn has no deadline for a slow client: header
bytes and fields, slow headers, slow bodies and slow readers are bounded here, and broken HTTP is
answered by an OpenAI error object.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.errors import (
    Answer,
    BadHttp,
    BodyTooLarge,
    GatewayError,
    HeadersTooLarge,
    RequestTimeout,
    answer,
)
from gateway.gathered import GatheredWrites
from gateway.guard import new_request_id

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


def raw_response(refusal: Answer, request_id: str) -> bytes:
    """A whole HTTP/1.1 response for requests that never become one of the application's."""
    head = [STATUS_LINE[refusal.status]]
    for name, value in (*refusal.headers, (b"x-request-id", request_id.encode())):
        head += [name, b": ", value, b"\r\n"]
    head.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(refusal.body))
    return b"".join((*head, refusal.body))


class Part(Enum):
    """What of a request a connection is in."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with caps; `limits` and `on_refused` are set by a subclass."""

    limits = EdgeLimits()
    on_refused: Callable[[int], None] = staticmethod(lambda _status: None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal: GatewayError | None = None
        self._part = Part.BETWEEN
        self._completed = False
        self._pending_bytes = 0
        self._header_bytes = 0
        self._body_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    # --- bytes in ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer that sends nothing is given the time of a header section."""
        super().connection_made(GatheredWrites(transport, self.loop))
        self._arm(self.limits.header_timeout_s)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then bound what is still unfinished, in bytes and in time."""
        if self._is_refused():
            return
        self._completed = False
        super().data_received(data)
        if self._is_refused() or self.transport.is_closing():
            return
        if self._part is Part.BODY:
            if self.cycle.more_body and not self.pipeline:
                self._arm(self.limits.body_timeout_s)
        elif not self._completed:
            self._unfinished_head(len(data))

    def _is_refused(self) -> bool:
        return self._refusal is not None

    def _unfinished_head(self, size: int) -> None:
        """Everything received in this read belongs to a header section that has not ended."""
        self._pending_bytes += size
        if self._pending_bytes > self.limits.max_header_bytes:
            self._refuse(HeadersTooLarge("The request headers are too large."))
        elif not self._is_responding():
            self._arm(self.limits.header_timeout_s)

    def _is_responding(self) -> bool:
        cycle = self._last_cycle()
        return cycle is not None and not cycle.response_complete

    def _last_cycle(self) -> RequestResponseCycle | None:
        """Uvicorn's annotation leaves out that there is none before the first request."""
        return self.cycle

    def on_message_begin(self) -> None:
        """A new request: its own counts."""
        super().on_message_begin()
        self._part = Part.HEAD
        self._pending_bytes = self._header_bytes = self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """The request target counts as header bytes."""
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count every field. A trailer must not pass for a header, such as a credential."""
        self._count_header(len(name) + len(value) + 4)
        if self._part is Part.BODY:
            return
        super().on_header(name, value)
        if len(self.headers) > self.limits.max_header_fields:
            self._raise(HeadersTooLarge("The request has too many header fields."))

    def on_headers_complete(self) -> None:
        """Refuse ambiguous framing and identity before the application sees the request."""
        self._part = Part.BODY
        self._pending_bytes = 0
        self._disarm()
        if sum(name == b"host" for name, _ in self.headers) > 1:
            self._raise(BadHttp("The request has more than one Host header."))
        if self.parser.should_upgrade() and self._has_body():
            # The parser would take this body for the next request: another client's, at a proxy.
            self._raise(BadHttp("A request with a body cannot ask for an upgrade of the protocol."))
        super().on_headers_complete()

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )

    def on_body(self, body: bytes) -> None:
        """Drop what the application refused, up to a limit; then hang up."""
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.max_body_bytes * DRAIN_FACTOR:
            self._raise(BodyTooLarge("The request body is too large."))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole: no deadline is left to keep."""
        self._disarm()
        self._part = Part.BETWEEN
        self._completed = True
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
        cycle = self._last_cycle()
        if cycle is None or not cycle.response_started:
            self._say_and_close(refusal)
        elif not cycle.response_complete:
            self.transport.abort()
        elif cycle.more_body:
            self.transport.close()  # this request has had its answer
        else:
            self._say_and_close(refusal)

    def _say_and_close(self, refusal: GatewayError) -> None:
        self.transport.write(raw_response(answer(refusal), new_request_id()))
        self.transport.close()

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
        if self._part is Part.BETWEEN:
            self.transport.close()  # nothing was asked
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
