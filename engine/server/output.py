"""From token ids to text that may be sent: whole characters only, and never a stop string.

Runs on the engine thread, between steps, so that a stop string ends its request before the next
step computes a token nobody wants. A detokenised token costs some microseconds, a step
milliseconds; turning text into JSON and SSE frames is left to the event loop.
"""

from typing import Final, Protocol


class Detokenizer(Protocol):
    """Incremental detokenisation, as `engine.protocol.text` does it."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        ...

    def flush(self) -> str:
        """What is left when no token follows."""
        ...


class Scanner(Protocol):
    """Finds stop strings in text that arrives in pieces."""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that cannot belong to a stop string, and whether one was found."""
        ...

    def flush(self) -> str:
        """The text held back, when no more follows."""
        ...


class OutputText:
    """Owns one request's detokeniser and stop scanner."""

    __slots__ = ("_detokenizer", "_scanner")

    def __init__(self, detokenizer: Detokenizer, scanner: Scanner) -> None:
        self._detokenizer: Final = detokenizer
        self._scanner: Final = scanner

    def push(self, token_id: int) -> tuple[str, bool]:
        """Text to send after this token, and whether a stop string ended the request."""
        return self._scanner.push(self._detokenizer.push(token_id))

    def finish(self, token_id: int | None) -> tuple[str, bool]:
        """The last text: of this last token if it has any, and of everything held back."""
        tail = "" if token_id is None else self._detokenizer.push(token_id)
        text, stopped = self._scanner.push(tail + self._detokenizer.flush())
        return (text, True) if stopped else (text + self._scanner.flush(), False)
