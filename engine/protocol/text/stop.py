"""Keeps stop strings, and whatever may yet become one, out of the text that is sent."""


class StopScanner:
    """Finds the first stop string to become complete; all after it is never sent.

    Neither is the string itself, unless `include`. Of several that complete at the same character
    the longest counts. Only text that may be the start of a stop string is held back. The result
    does not depend on how the text is cut up.
    """

    def __init__(self, stop: tuple[str, ...], *, include: bool = False) -> None:
        if "" in stop:
            raise ValueError("an empty stop string would stop everything")
        self._matchers = [_Matcher(text) for text in stop]
        self._include = include
        self._held = ""
        self._stopped = False

    def push(self, text: str, *, armed: bool = True) -> tuple[str, bool]:
        """The text that is now safe to send, and whether a stop string was met.

        One that becomes complete in a text that is not `armed` is a text like any other.
        """
        if self._stopped:
            return "", True
        if not self._matchers:
            return text, False
        pending = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            found = max(matcher.advance(char) for matcher in self._matchers)
            if found and armed:
                self._held = ""
                self._stopped = True
                return pending[: end if self._include else end - found], True
        safe = len(pending) - max(matcher.held for matcher in self._matchers)
        self._held = pending[safe:]
        return pending[:safe], False

    def flush(self) -> str:
        """The held-back text: the end came before it became a stop string."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Knuth-Morris-Pratt: `held` characters of the pattern, and not all, are the text's latest."""

    __slots__ = ("_borders", "_pattern", "held")

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._borders = _borders(pattern)
        self.held = 0

    def advance(self, char: str) -> int:
        """Take one character; returns the pattern's length when it is complete, else 0."""
        matched = self.held
        while matched and self._pattern[matched] != char:
            matched = self._borders[matched - 1]
        if self._pattern[matched] == char:
            matched += 1
        complete = matched == len(self._pattern)
        self.held = self._borders[matched - 1] if complete else matched
        return matched if complete else 0


def _borders(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0]
    for char in pattern[1:]:
        length = borders[-1]
        while length and pattern[length] != char:
            length = borders[length - 1]
        borders.append(length + (pattern[length] == char))
    return borders
