"""What the engine thread tells one HTTP handler, through a bounded stream on the event loop."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from engine.core.request import FinishReason
from engine.server.errors import SlowReader

MAX_UNREAD_CHARS: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request began to run; this much of its prompt was cached."""

    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that may be sent now, "" while held back; `output_tokens` counts from the start."""

    text: str
    output_tokens: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without a finish reason a client may see."""

    error: Exception


Event = Admitted | Delta | Failed


class TokenStream:
    """Single consumer; touched on the event loop's thread only.

    Deltas that nobody has read yet are merged into one, so a reader that falls behind, or an event
    loop that was held up, gets fewer and longer events and holds at most `max_unread_chars` of
    text. Beyond that the stream ends with `SlowReader`.
    """

    def __init__(self, request_id: str, max_unread_chars: int = MAX_UNREAD_CHARS) -> None:
        self.request_id: Final = request_id
        self._events: deque[Event] = deque()
        self._readable = asyncio.Event()
        self._max_unread_chars = max_unread_chars
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the last event was pushed (it may still be unread)."""
        return self._ended

    def push(self, event: Event) -> bool:
        """Add an event; False when the reader was too slow and the request should be aborted."""
        if self._ended:
            return True
        merged = self._merged(event)
        kept = not isinstance(merged, Delta) or len(merged.text) <= self._max_unread_chars
        if not kept:
            merged = Failed(SlowReader())
        self._events.append(merged)
        self._ended = isinstance(merged, Failed) or _is_last(merged)
        self._readable.set()
        return kept

    async def next(self) -> Event:
        """The next event; waits for it. After the last event nothing more comes."""
        while not self._events:
            self._readable.clear()
            await self._readable.wait()
        return self._events.popleft()

    def _merged(self, event: Event) -> Event:
        if not (isinstance(event, Delta) and self._events):
            return event
        unread = self._events[-1]
        if not isinstance(unread, Delta):
            return event
        self._events.pop()
        return Delta(unread.text + event.text, event.output_tokens, event.finish_reason)


def _is_last(event: Event) -> bool:
    return isinstance(event, Delta) and event.finish_reason is not None
