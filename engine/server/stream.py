"""What the engine thread tells one HTTP handler, through a bounded stream on the event loop."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from engine.core.batch import Logprobs
from engine.core.request import FinishReason
from engine.server.errors import SlowReader

MAX_UNREAD_CHARS: Final = 256 * 1024
_CHARS_PER_SCORE: Final = 32
"""What one log-probability weighs against the bound on unread text."""


@dataclass(frozen=True, slots=True)
class ListedToken:
    """An output token whose whole text was sent; `offset` is where that begins in its choice."""

    token_id: int
    offset: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request began to run; this much of its prompt was cached."""

    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptScored:
    """Log-probabilities of the next prompt positions; the first is of position 1."""

    logprobs: tuple[Logprobs, ...]


class Delta(NamedTuple):
    """Text of one choice that may be sent now, "" while held back.

    `output_tokens` counts the choice's from the start, sent or not; `tokens` are listed only where
    the request asked for them.
    """

    text: str
    output_tokens: int
    finish_reason: FinishReason | None = None
    choice: int = 0
    tokens: tuple[ListedToken, ...] = ()

    @property
    def weight(self) -> int:
        """About how much memory it takes, in characters."""
        if not self.tokens:
            return len(self.text)
        scores = sum(1 + len(t.logprobs.top) if t.logprobs else 1 for t in self.tokens)
        return len(self.text) + scores * _CHARS_PER_SCORE

    def followed_by(self, later: "Delta") -> "Delta":
        """Both as one."""
        return Delta(
            self.text + later.text,
            later.output_tokens,
            later.finish_reason,
            self.choice,
            self.tokens + later.tokens,
        )


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without a finish reason a client may see."""

    error: Exception


Event = Admitted | PromptScored | Delta | Failed


class TokenStream:
    """Single consumer; touched on the event loop's thread only.

    Deltas of one choice that nobody has read yet are merged into one, so a reader that falls
    behind, or an event loop that was held up, gets fewer and longer events and holds at most
    `max_unread_chars` of them. Beyond that the stream ends with `SlowReader`. It also ends after
    the last delta of each of its choices, and after a failure.
    """

    def __init__(
        self, request_id: str, num_choices: int = 1, max_unread_chars: int = MAX_UNREAD_CHARS
    ) -> None:
        self.request_id: Final = request_id
        # In the order in which they are read. A delta's key is its choice's index, so that later
        # ones find it; the keys of other events are unique and negative.
        self._events: OrderedDict[int, Event] = OrderedDict()
        self._num_others = 0
        self._readable = asyncio.Event()
        self._max_unread_chars = max_unread_chars
        self._unread_chars = 0
        self._num_unfinished = num_choices
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the last event was pushed (it may still be unread)."""
        return self._ended

    def push(self, event: Event) -> bool:
        """Add an event; False when the reader was too slow and the request should be aborted."""
        if self._ended:
            return True
        kept = True
        if isinstance(event, Delta):
            kept = self._push_delta(event)
        else:
            self._num_others += 1
            self._events[-self._num_others] = event
            self._ended = isinstance(event, Failed)
        self._readable.set()
        return kept

    async def next(self) -> Event:
        """The next event; waits for it. After the last event nothing more comes."""
        while not self._events:
            self._readable.clear()
            await self._readable.wait()
        _, event = self._events.popitem(last=False)
        if isinstance(event, Delta):
            self._unread_chars -= event.weight
        return event

    def _push_delta(self, delta: Delta) -> bool:
        self._unread_chars += delta.weight
        if self._unread_chars > self._max_unread_chars:
            self._events.clear()
            self._events[-1] = Failed(SlowReader())
            self._ended = True
            return False
        unread = self._events.get(delta.choice)
        if isinstance(unread, Delta):
            delta = unread.followed_by(delta)
        self._events[delta.choice] = delta
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
            self._ended = self._num_unfinished == 0
        return True
