"""How much a template may do, and how it fails.

A unit of work takes less than about a microsecond and 100 bytes: an expression, an item of a list,
32 characters of a new text, 64 characters of one that is looked through. Charges come before what
they are for, so that nothing is begun that could not be finished.
"""

from typing import Final

_CHARACTERS_MADE: Final = 5  # 2**5 a unit
_CHARACTERS_READ: Final = 6
# From CPython's `fastsearch.h`: whole texts are tried in shorter ones than this, elsewhere fewer.
_SHORT: Final = 2_500  # characters
_TRIED: Final = 100
_TRIED_AT_ONCE: Final = 16  # in the time in which a character is looked at
_MAX_DEPTH: Final = 32


class TemplateError(Exception):
    """What a template does is wrong, or is nothing that a template may do."""


class TooMuchWorkError(TemplateError):
    """A template does more than it may."""


class RefusalError(TemplateError):
    """The template called `raise_exception`: these messages are not what it is for."""


class Work:
    """The units that one rendering may still take."""

    __slots__ = ("_depth", "_left")

    def __init__(self, units: int) -> None:
        self._left = units
        self._depth = 0

    def enter(self) -> None:
        """Go into a macro; raises TooMuchWorkError when they call one another without end."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise TooMuchWorkError("calls macros too deeply")

    def leave(self) -> None:
        """Come out of a macro."""
        self._depth -= 1

    def spend(self, units: int) -> None:
        """Take units; raises TooMuchWorkError."""
        self._left -= units
        if self._left < 0:
            raise TooMuchWorkError("takes too much work")

    def make(self, characters: int) -> None:
        """Take what a new text of so many characters costs."""
        self.spend(1 + (characters >> _CHARACTERS_MADE))

    def read(self, characters: int) -> None:
        """Take what a search through so many characters costs."""
        self.spend(1 + (characters >> _CHARACTERS_READ))

    def search(self, characters: int, sought: int) -> None:
        """Take what it costs to look in so many characters for so many others.

        Python tries the others at each place of a short text, and takes linear time for a long one.
        """
        tried = min(sought, characters if characters < _SHORT else _TRIED)
        self.read(characters + characters * tried // _TRIED_AT_ONCE)
