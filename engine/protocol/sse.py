"""Server-sent events: frame one payload, and read payloads back from a byte stream."""

from typing import Final

DONE: Final = b"data: [DONE]\n\n"
"""The event that ends an OpenAI stream that went well."""
DONE_PAYLOAD: Final = b"[DONE]"
CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"
MAX_EVENT_BYTES: Final = 4 * 1024 * 1024


class SseOverflowError(ValueError):
    """The peer sent an event larger than the parser was told to hold."""


def encode(payload: bytes) -> bytes:
    """One event. Raises ValueError for a payload of several lines, which JSON never has."""
    if b"\n" in payload or b"\r" in payload:
        raise ValueError("an event's payload must be a single line")
    return b"data: " + payload + b"\n\n"


class Parser:
    """Turns chunks, cut anywhere, into data payloads; holds at most `max_event_bytes` of one event.

    Lines may end in LF, CRLF or CR; comments and fields other than `data` are skipped; several
    data lines of one event are joined by LF, as the HTML standard says.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._fragments: list[bytes] = []
        self._data: list[bytes] = []
        self._held = 0
        self._skip_line_feed = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads that `chunk` completes. Raises SseOverflowError for too big an event."""
        if not chunk:
            return []
        if self._skip_line_feed and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._skip_line_feed = chunk.endswith(b"\r")
        payloads: list[bytes] = []
        for line in chunk.splitlines(keepends=True):
            if line.endswith((b"\n", b"\r")):
                self._end_line(line.rstrip(b"\r\n"), payloads)
            else:
                self._hold(len(line))
                self._fragments.append(line)
        return payloads

    def _end_line(self, rest: bytes, payloads: list[bytes]) -> None:
        if self._fragments:
            self._held -= sum(map(len, self._fragments))
            rest = b"".join((*self._fragments, rest))
            self._fragments.clear()
        if not rest:
            if self._data:
                payloads.append(b"\n".join(self._data))
                self._data.clear()
                self._held = 0
            return
        field, _, value = rest.partition(b":")
        if field == b"data":
            self._hold(len(value) + 1)
            self._data.append(value.removeprefix(b" "))

    def _hold(self, num_bytes: int) -> None:
        self._held += num_bytes
        if self._held > self._max_event_bytes:
            raise SseOverflowError(f"an event is larger than {self._max_event_bytes} bytes")
