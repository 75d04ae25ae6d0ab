"""Which regular expressions of a model's tokenizer are safe to run on any text.

The library that runs them backtracks, so that a pattern can take time without end with a short
text. A pattern passes if no search with it can go back over more than a few characters: what may
be repeated without bound stands outside of groups, and nothing that must match follows it. Then a
search either finds something after its repetition, or fails within a bounded number of steps.
"""

import re
from dataclasses import dataclass
from math import prod
from typing import Final

_MAX_LENGTH: Final = 2048
_MAX_DEPTH: Final = 4
_MAX_WAYS: Final = 256
_GROUPS: Final = re.compile(r"\(\?(?:i?:|[=!>])")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\[\\])*\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[pPux]\{\^?\w+\}|u[0-9A-Fa-f]{4}|[pP]\w|[sSdDwWhbBrnt]|\W)")
_QUANTIFIER: Final = re.compile(
    r"([*+?])[?+]?|\{(?=,?\d)(\d{1,3})?(?:(,)(\d{1,3})?)?\}(\+)?"  # a count before `+` is repeated
)
_UNREAD_COUNT: Final = re.compile(r"\{[\d,}]")
# In published tokenizers, and harmless: the first goes back by one; what the others would go back
# over is taken by the alternative named beside each, which has to be there.
_HARMLESS: Final = {
    r"\s+(?!\S)": r"\s+(?!\S)",
    r"\s*[\r\n]+": r"\s+",
    r"\s*[\r\n]": r"\s+",
    **{
        prefix + upper + "*" + lower + "+" + ending: prefix + upper + "+" + lower + "*" + ending
        for prefix in ("", r"[^\r\n\p{L}\p{N}]?")
        for upper, lower in (
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}]", r"[\p{Ll}\p{Lm}\p{Lo}]"),
        )
        for ending in ("", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
    },
}


def check_pattern(pattern: str) -> None:
    """Raise ValueError for one that could take long, or is nothing that a tokenizer needs."""
    if len(pattern) > _MAX_LENGTH:
        raise ValueError("it has a pattern that is too long")
    alternatives = _Reader(pattern).read()
    known = {alternative.text for alternative in alternatives}
    for alternative in alternatives:
        if _HARMLESS.get(alternative.text) not in known and not alternative.is_bounded:
            raise _unsupported(pattern)


def _unsupported(pattern: str) -> ValueError:
    return ValueError(f"its pattern {pattern[:80]!r} is not supported")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A character, class or group with its quantifier: in how many `ways` it matches at a place.

    `endless`: without bound. `must`: whether it may make the match fail.
    """

    ways: int
    endless: bool
    must: bool


@dataclass(frozen=True, slots=True)
class _Alternative:
    text: str
    pieces: tuple[_Piece, ...]

    @property
    def ways(self) -> int:
        """In how many ways it matches, if none of its pieces is endless."""
        return prod(piece.ways for piece in self.pieces)

    @property
    def is_bounded(self) -> bool:
        """Whether it goes back over a bounded number of ways."""
        endless = [piece.endless for piece in self.pieces]
        after = self.pieces[endless.index(True) + 1 :] if any(endless) else ()
        return self.ways <= _MAX_WAYS and not any(piece.must for piece in after)


class _Reader:
    """Goes through a pattern once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def read(self) -> list[_Alternative]:
        """The alternatives of the whole pattern."""
        alternatives = self._alternatives(0)
        if self._at < len(self._pattern):
            raise _unsupported(self._pattern)  # a parenthesis that closes nothing
        return alternatives

    def _alternatives(self, depth: int) -> list[_Alternative]:
        found = []
        while True:
            start, pieces = self._at, []
            while self._next() not in {"", "|", ")"}:
                pieces.append(self._piece(depth))
            found.append(_Alternative(self._pattern[start : self._at], tuple(pieces)))
            if self._next() != "|":
                return found
            self._at += 1

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _piece(self, depth: int) -> _Piece:
        group = self._group(depth) if self._next() == "(" else None
        if group is None:
            self._character()
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is None:
            return _Piece(1 if group is None else group, endless=False, must=True)
        self._at = quantifier.end()
        least, most = _bounds(quantifier)
        if depth and most is None:
            raise _unsupported(self._pattern)
        if group is None:
            ways = 1 if most is None else most - least + 1
            return _Piece(ways, endless=most is None, must=least > 0)
        if (least, most) != (0, 1):
            return self._repeated_group(group, least, most)
        return _Piece(group + 1, endless=False, must=False)

    def _repeated_group(self, ways: int, least: int, most: int | None) -> _Piece:
        """One that matches in one way only may be repeated so often, and no oftener."""
        if ways > 1 or most is None:
            raise _unsupported(self._pattern)
        return _Piece(most - least + 1, endless=False, must=least > 0)

    def _group(self, depth: int) -> int:
        """In how many ways it matches."""
        found = _GROUPS.match(self._pattern, self._at)
        plain = self._pattern[self._at + 1 : self._at + 2] != "?"
        if depth >= _MAX_DEPTH or (found is None and not plain):
            raise _unsupported(self._pattern)
        self._at = self._at + 1 if found is None else found.end()
        ways = sum(alternative.ways for alternative in self._alternatives(depth + 1))
        if self._next() != ")" or ways > _MAX_WAYS:
            raise _unsupported(self._pattern)
        self._at += 1
        return ways

    def _character(self) -> None:
        if self._next() in {"*", "+", "?"}:
            raise _unsupported(self._pattern)  # it repeats nothing, or a repetition
        if _UNREAD_COUNT.match(self._pattern, self._at):
            raise _unsupported(self._pattern)  # what the library makes of it is not known here
        kind = {"\\": _ESCAPE, "[": _CLASS}.get(self._next())
        if kind is None:
            self._at += 1
            return
        found = kind.match(self._pattern, self._at)
        if found is None:
            raise _unsupported(self._pattern)
        self._at = found.end()


def _bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    """How often at least and at most; None: without bound."""
    sign, least, comma, most, repeated = quantifier.groups()
    if sign is not None:
        return int(sign == "+"), 1 if sign == "?" else None
    first = int(least or 0)
    if repeated is not None:
        return first, None
    if comma is None:
        return first, first
    return first, None if most is None else max(first, int(most))
