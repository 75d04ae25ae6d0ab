"""Text to token ids, with control tokens that only a model's own template can produce.

A rendered template is split at the control tokens spelled in it; what lies between goes through
the *plain* tokenizer, which knows every token but those, so whatever it is given becomes ordinary
tokens. Text from clients goes through the plain one only; inside a rendered template it is first
marked, so that the split cannot find a control token in it or across its edges.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from os.path import commonprefix
from types import MappingProxyType
from typing import Any, Final

from tokenizers import Tokenizer

from engine.protocol.errors import InvalidRequest

_HIGHEST_CODE_POINT: Final = 0x10FFFF
_LONG: Final = 2_048  # characters; about a millisecond
# Characters in all parts of all control tokens, which are kept; real models have below 2**23.
_MAX_CONTROL_PARTS: Final = 1 << 26
# Unicode's white space, which Python's own idea of it goes beyond.
_WHITE_SPACE: Final = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A token that steers the model; `lstrip`, `rstrip`: it swallows the whitespace beside it."""

    token_id: int
    text: str
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class TextTokenizer:
    """A vocabulary. `token_bytes[id]` is a token's text, b"" for control tokens.

    `plain` encodes ordinary text at the start of a prompt, `plain_inner` after its start (some
    vocabularies put a space before the first word); `middle`, where it differs from that, what
    follows no control token either. `prefix` and `suffix` are what a completion's text is wrapped
    in. Safe to share between threads: encoding changes nothing.
    """

    plain: Tokenizer
    plain_inner: Tokenizer
    control: tuple[ControlToken, ...]
    token_bytes: tuple[bytes, ...]
    middle: Tokenizer | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for control tokens so long that their parts would fill the memory."""
        if sum(len(control.text) ** 3 for control in self.control) // 6 > _MAX_CONTROL_PARTS:
            raise ValueError("its control tokens are too long to be kept out of ordinary text")

    def encode(self, text: str) -> list[int]:
        """A completion's prompt. Control tokens spelled in `text` stay ordinary text."""
        return [*self.prefix, *_ids(self.plain, text), *self.suffix]

    def encode_inner(self, text: str) -> list[int]:
        """Text that has text before it. Control tokens spelled in it stay ordinary text."""
        return _ids(self.middle or self.plain_inner, text)

    def encode_rendered(
        self, text: str, marker: str, known: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> list[int]:
        """A rendered template, in which client text was marked with `marker` ("" for none).

        `known` are parts encoded before, by `inner_parts`: what a template says never changes.
        """
        token_ids: list[int] = []
        for control, start, end in self._split(text):
            if control is not None:
                token_ids.append(control.token_id)
                continue
            part = text[start:end]
            if marker:
                part = part.replace(marker, "")
            if start and part in known:
                token_ids += known[part]
            else:
                token_ids += _ids(self.plain_inner if start else self.plain, part)
        return token_ids

    def inner_parts(self, text: str) -> dict[str, tuple[int, ...]]:
        """The ordinary text between control tokens, after the first, and what each encodes to."""
        parts = {
            text[start:end] for control, start, end in self._split(text) if start and not control
        }
        return {part: tuple(_ids(self.plain_inner, part)) for part in parts}

    def needs_marks(self, text: str) -> bool:
        """Whether client text could put a control token into a rendered template."""
        return any(control for control, _, _ in self._split(text)) or any(self._loose_ends(text))

    def mark(self, text: str, marker: str) -> str:
        """`text` with `marker` in and around every control token and at edges that might join one.

        No mark touches leading or trailing whitespace: templates trim.
        """
        head, tail = self._loose_ends(text)
        parts = [
            text[start:end] if control is None else _pull_apart(text[start:end], marker)
            for control, start, end in self._split(text)
        ]
        marked = "".join(parts)
        core = marked.strip()
        start = marked.index(core)
        end = start + len(core)
        before, after = (marker if head else ""), (marker if tail else "")
        return f"{marked[:start]}{before}{core}{after}{marked[end:]}"

    def _loose_ends(self, text: str) -> tuple[bool, bool]:
        """Whether text before, and whether text after, might complete a control token with this."""
        core = text.strip()
        longest = min(len(core), self._longest_control)
        if not longest:
            return False, False
        if core in self._infixes:
            return True, True
        # Most text has no first or last character of a control token near its ends.
        head = not self._last_characters.isdisjoint(core[:longest]) and any(
            core[:length] in self._suffixes for length in range(1, longest + 1)
        )
        tail = not self._first_characters.isdisjoint(core[-longest:]) and any(
            core[-length:] in self._prefixes for length in range(1, longest + 1)
        )
        return head, tail

    def _split(self, text: str) -> Iterator[tuple[ControlToken | None, int, int]]:
        """Control tokens (leftmost, longest) and the ordinary text between them, as offsets."""
        done = 0
        for match in self._spellings.finditer(text):
            start, end = match.span()
            control = self._by_text[match[0]]
            while control.lstrip and start > done and text[start - 1] in _WHITE_SPACE:
                start -= 1
            while control.rstrip and end < len(text) and text[end] in _WHITE_SPACE:
                end += 1
            if done < start:
                yield None, done, start
            yield control, start, end
            done = end
        if done < len(text):
            yield None, done, len(text)

    @cached_property
    def _spellings(self) -> re.Pattern[str]:
        nothing = "(?!)"
        return re.compile(_longest_of(self._by_text) if self._by_text else nothing)

    @cached_property
    def _by_text(self) -> dict[str, ControlToken]:
        # Reversed, so that of two tokens with one spelling the first counts, as everywhere.
        return {c.text: c for c in reversed(self._parsed)}

    @cached_property
    def _first_characters(self) -> frozenset[str]:
        return frozenset(c.text[0] for c in self._parsed)

    @cached_property
    def _last_characters(self) -> frozenset[str]:
        return frozenset(c.text[-1] for c in self._parsed)

    @cached_property
    def _parsed(self) -> list[ControlToken]:
        # No mark fits into a single character, so such a token is never read from any text.
        return [control for control in self.control if len(control.text) > 1]

    @cached_property
    def _longest_control(self) -> int:
        return max((len(c.text) for c in self._parsed), default=0)

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(c.text[:i] for c in self._parsed for i in range(1, len(c.text)))

    @cached_property
    def _suffixes(self) -> frozenset[str]:
        return frozenset(c.text[i:] for c in self._parsed for i in range(1, len(c.text)))

    @cached_property
    def _infixes(self) -> frozenset[str]:
        return frozenset(
            c.text[i:j]
            for c in self._parsed
            for i in range(1, len(c.text))
            for j in range(i + 1, len(c.text))
        )


def unused_character(texts: Sequence[str]) -> str:
    """A character in none of `texts`.

    One of the million beyond the basic plane, each four bytes long, is always free in less than
    four megabytes of text.
    """
    used = frozenset("".join(texts))
    return next(
        chr(point) for point in range(_HIGHEST_CODE_POINT, -1, -1) if chr(point) not in used
    )


def _longest_of(texts: Iterable[str]) -> str:
    """A pattern for the longest of `texts` that is there.

    It is a tree, so that a miss costs as many steps as the text agrees with one of them, however
    many they are.
    """
    branches = []
    for first, alike in groupby(sorted(texts), key=lambda text: text[:1]):
        if first:
            members = list(alike)
            shared = commonprefix(members)  # noqa: RUF071 - of characters, as it should be
            rest = _longest_of(member[len(shared) :] for member in members)
            branches.append(re.escape(shared) + rest)
        else:
            branches.append("")  # sorted first, and tried last
    return f"(?:{'|'.join(reversed(branches))})"


def _pull_apart(found: str, marker: str) -> str:
    """A marker on both sides of each character, but not outside the whitespace around them."""
    core = found.strip()
    return found.replace(core, f"{marker}{marker.join(core)}{marker}", 1) if core else found


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids. Only the batch call lets other threads run, and it costs a short text more."""
    try:
        if len(text) > _LONG:
            (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        else:
            encoding = tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if is_panic(error):  # a pattern of the model's that takes too long with this text
            raise InvalidRequest("The model's tokenizer cannot encode this text.") from error
        raise
    ids: list[int] = encoding.ids
    return ids


def is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up. Its exception has no name to import, and is no Exception."""
    return type(error).__module__ == "pyo3_runtime"
