"""From token ids to what may be sent: whole characters only, and never a stop string.

Runs on the engine thread, between steps, so that a stop string ends its request before the next
step computes a token nobody wants. A detokenised token costs some microseconds, a step
milliseconds; turning text into JSON and SSE frames is left to the event loop.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from engine.core.batch import Logprobs
from engine.server.stream import ListedToken


class Detokenizer(Protocol):
    """Incremental detokenisation, as `engine.protocol.text` does it."""

    @property
    def partial(self) -> bool:
        """Whether the latest character is not whole yet."""
        ...

    @property
    def num_earlier(self) -> int:
        """Characters of the latest text that its token cut off."""
        ...

    def push(self, token_id: int) -> str:
        """The characters that this token completes, or cuts off."""
        ...

    def flush(self) -> str:
        """What is left when no token follows."""
        ...


class Scanner(Protocol):
    """Finds stop strings in text that arrives in pieces."""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, bool]:
        """The text that cannot belong to a stop string, and whether one was found."""
        ...

    def flush(self) -> str:
        """The text held back, when no more follows."""
        ...


class Piece(NamedTuple):
    """What one token adds: text, whether a stop string ended it, and the tokens now listed."""

    text: str
    stopped: bool
    tokens: tuple[ListedToken, ...] = ()


class OutputText:
    """Owns one sample's detokeniser, its stop scanner and, where wanted, its list of tokens.

    Stop strings do not count before the output is longer than `min_tokens`. The text of a token
    that ends the output is left out unless `show_stop_token`.
    """

    __slots__ = (
        "_detokenizer",
        "_listing",
        "_min_tokens",
        "_num_tokens",
        "_scanner",
        "_show_stop_token",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        scanner: Scanner,
        *,
        min_tokens: int = 0,
        show_stop_token: bool = False,
        listing: "TokenListing | None" = None,
    ) -> None:
        self._detokenizer: Final = detokenizer
        self._scanner: Final = scanner
        self._min_tokens: Final = min_tokens
        self._show_stop_token: Final = show_stop_token
        self._listing: Final = listing
        self._num_tokens = 0

    def push(self, token_id: int, logprobs: Logprobs | None = None) -> Piece:
        """Take a token that is not the last."""
        decoded = self._detokenizer.push(token_id)
        self._num_tokens += 1
        armed = self._num_tokens > self._min_tokens
        text, stopped = self._scanner.push(decoded, armed=armed)
        if self._listing is None:
            return Piece(text, stopped)
        begins = self._detokenizer.num_earlier
        partial = self._detokenizer.partial
        self._listing.add(token_id, logprobs, len(decoded), begins=begins, partial=partial)
        return Piece(text, stopped, self._listing.sent(len(text)))

    def finish(
        self, token_id: int, logprobs: Logprobs | None = None, *, by_token: bool = False
    ) -> Piece:
        """Take the last token, itself the end if `by_token`; nothing is held back any more."""
        hidden = by_token and not self._show_stop_token
        decoded = "" if hidden else self._detokenizer.push(token_id)
        partial = not hidden and self._detokenizer.partial
        armed = self._num_tokens >= self._min_tokens
        text, stopped = self._scanner.push(decoded + self._detokenizer.flush(), armed=armed)
        if not stopped:
            text += self._scanner.flush()
        if self._listing is None:
            return Piece(text, stopped)
        begins = 0 if hidden else self._detokenizer.num_earlier
        self._listing.add(token_id, logprobs, len(decoded), begins=begins, partial=partial)
        listed = self._listing.sent(len(text)) if stopped else self._listing.rest()
        return Piece(text, stopped, listed)


class _Held(NamedTuple):
    token: ListedToken
    end: int


class TokenListing:
    """Lists tokens in step with their text: each once the last character it has a part in is sent.

    So a list never tells what a stop string cut off. Offsets count characters from `start`.
    """

    __slots__ = ("_decoded", "_held", "_sent")

    def __init__(self, start: int = 0) -> None:
        self._held: deque[_Held] = deque()
        self._decoded = start
        self._sent = start

    def add(
        self,
        token_id: int,
        logprobs: Logprobs | None,
        num_chars: int,
        *,
        begins: int,
        partial: bool,
    ) -> None:
        """A token ended `num_chars` characters and, if `partial`, has begun another.

        Its own first is the one at `begins` of these.
        """
        token = ListedToken(token_id, self._decoded + begins, logprobs)
        self._decoded += num_chars
        self._held.append(_Held(token, self._decoded + partial))

    def sent(self, num_chars: int) -> tuple[ListedToken, ...]:
        """So much more text was sent: the tokens that are listed with it."""
        self._sent += num_chars
        listed = []
        while self._held and self._held[0].end <= self._sent:
            listed.append(self._held.popleft().token)
        return tuple(listed)

    def rest(self) -> tuple[ListedToken, ...]:
        """All text was sent: the tokens that are left."""
        listed = tuple(held.token for held in self._held)
        self._held.clear()
        return listed


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as text, and where in it each of its tokens begins."""

    text: str
    offsets: tuple[int, ...]


def echo_of(detokenizer: Detokenizer, token_ids: Sequence[int]) -> Echo:
    """The prompt as its tokens spell it; an unfinished last character is left to the answer."""
    pieces: list[str] = []
    offsets: list[int] = []
    length = 0
    for token_id in token_ids:
        pieces.append(detokenizer.push(token_id))
        offsets.append(length + detokenizer.num_earlier)
        length += len(pieces[-1])
    return Echo("".join(pieces), tuple(offsets))
