"""Attributes, items and slices of values, and the methods of texts and dicts that may be called."""

import itertools
import string
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.protocol.text.template.values import (
    SEQUENCES,
    UNDEFINED,
    Loop,
    Namespace,
    Undefined,
    equal,
    items_of,
    joined,
    key_of,
    text_of,
    texts_of,
)
from engine.protocol.text.template.work import TemplateError, Work

_GROWTH: Final = 3  # of a character that becomes several in another case


class Method:
    """A method that a value has, not called yet."""

    __slots__ = ("_name", "_owner")

    def __init__(self, owner: Any, name: str) -> None:
        self._owner = owner
        self._name = name

    def call(self, work: Work, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """See `Function.call`."""
        return _METHODS[type(self._owner)][self._name](work, self._owner, *args, **kwargs)


def attribute(work: Work, value: Any, name: str) -> Any:
    """`value.name`: a method of that name, else the item."""
    if name in _METHODS.get(type(value), ()):
        return Method(value, name)
    return item(work, value, name)


def item(work: Work, value: Any, key: Any) -> Any:
    """`value[key]`; UNDEFINED where there is none."""
    if isinstance(value, dict):
        return value.get(key_of(work, key), UNDEFINED)
    if isinstance(value, (str, *SEQUENCES)):
        inside = isinstance(key, int) and -len(value) <= key < len(value)
        return value[key] if inside else UNDEFINED
    if isinstance(value, Namespace):
        return value.attributes.get(key_of(work, key), UNDEFINED)
    if isinstance(value, Loop):
        return value.attribute(key) if isinstance(key, str) else UNDEFINED
    if isinstance(value, Undefined):
        raise TemplateError("asks something undefined for a part of it")
    return UNDEFINED


def sliced(work: Work, value: Any, bounds: slice) -> Any:
    """`value[start:stop:step]`."""
    if isinstance(value, Undefined) or not isinstance(value, (str, *SEQUENCES)):
        raise TemplateError("takes a slice of what has none")
    for bound in (bounds.start, bounds.stop, bounds.step):
        if not isinstance(bound, int | None):
            raise TemplateError("takes a slice between what is no number")
    size = len(range(*bounds.indices(len(value))))
    if isinstance(value, str):
        work.make(size)
    else:
        work.spend(size)
    return value[bounds]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TemplateError("needs a text where something else is")
    return value


def _plain(name: str) -> Callable[..., Any]:
    """A method without arguments whose work and result are at most a few times its text."""
    method = getattr(str, name)

    def call(work: Work, text: str) -> Any:
        work.make(_GROWTH * len(text))
        return method(text)

    return call


def _strip(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(work: Work, text: str, characters: Any = None) -> Any:
        if characters is not None:  # each of them may be looked for at each place
            work.read(len(text) * len(_text(characters)))
        work.make(len(text))
        return method(text, characters)

    return call


def _affix(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(work: Work, text: str, affix: Any, start: int | None = None) -> Any:
        affixes = texts_of(affix) if isinstance(affix, tuple) else [_text(affix)]
        work.spend(len(affixes))
        work.read(sum(map(len, affixes)))
        if start is not None and not isinstance(start, int):
            raise TemplateError("needs a number where something else is")
        return method(text, tuple(affixes), start)

    return call


def _without(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(work: Work, text: str, affix: Any) -> Any:
        work.make(len(text))
        return method(text, _text(affix))

    return call


def _find(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(work: Work, text: str, sought: Any) -> Any:
        _charge_search(work, name, text, sought)
        try:
            return method(text, sought)
        except ValueError:
            raise TemplateError("looks for a text that is not there") from None

    return call


def _charge_search(work: Work, name: str, text: str, sought: Any) -> None:
    """Backwards Python may try a text at each place, however long the other is."""
    if name.startswith("r"):
        work.read(len(text) * len(_text(sought)))
    else:
        work.search(len(text), len(_text(sought)))


def _partition(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(work: Work, text: str, separator: Any) -> Any:
        _charge_search(work, name, text, separator)
        work.make(len(text))
        return method(text, separator)

    return call


def _split(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def call(work: Work, text: str, sep: Any = None, maxsplit: Any = -1) -> Any:
        if not isinstance(maxsplit, int):
            raise TemplateError("needs a number where something else is")
        if sep is None:
            pieces = len(text) // 2 + 1
        else:
            _charge_search(work, name, text, sep)
            pieces = text.count(sep) + 1 if sep else 1
        work.spend(pieces if maxsplit < 0 else min(pieces, maxsplit + 1))
        work.make(len(text))
        return method(text, sep, maxsplit)

    return call


def _splitlines(work: Work, text: str, keepends: Any = None) -> list[str]:
    work.spend(len(text) // 4 + 1)
    return text.splitlines(bool(keepends))


def replaced(work: Work, text: str, old: Any, new: Any, count: Any = -1) -> str:
    """`text.replace(old, new, count)`."""
    if not isinstance(count, int):
        raise TemplateError("needs a number where something else is")
    work.search(len(text), len(_text(old)))
    times = text.count(old)
    times = times if count < 0 else min(times, count)
    work.make(len(text) + times * (1 + len(_text(new))))
    return text.replace(old, new, count)


def _join(work: Work, separator: str, values: Any) -> str:
    return joined(work, separator, texts_of(items_of(work, values)))


def _format(work: Work, text: str, *args: Any, **kwargs: Any) -> str:
    """With plain fields only: `{}`, `{0}`, `{name}`; their formats could ask for any width."""
    work.make(8 * len(text))
    pieces = []
    places = itertools.count()
    for literal, field, form, conversion in string.Formatter().parse(text):
        pieces.append(literal)
        if field is None:
            continue
        if form or conversion:
            raise TemplateError("formats in a way that is not supported")
        key = field or str(next(places))
        if key.isdecimal() and int(key) < len(args):
            pieces.append(text_of(work, args[int(key)]))
        elif key in kwargs:
            pieces.append(text_of(work, kwargs[key]))
        else:
            raise TemplateError("formats a field that it has no value for")
    return joined(work, "", pieces)


def _get(work: Work, values: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return values.get(key_of(work, key), default)


def _listed(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def call(work: Work, values: dict[Any, Any]) -> list[Any]:
        work.spend(len(values))
        return list(method(values))

    return call


def _count(work: Work, values: Any, sought: Any) -> int:
    return sum(equal(work, value, sought) for value in values)


def _index(work: Work, values: Any, sought: Any) -> int:
    for place, value in enumerate(values):
        if equal(work, value, sought):
            return place
    raise TemplateError("looks for an item that is not there")


_CASES: Final = ("upper", "lower", "title", "capitalize", "casefold", "swapcase")
_QUESTIONS: Final = ("alnum", "alpha", "ascii", "decimal", "digit", "lower", "numeric", "space")
_TEXT_METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _plain(name) for name in _CASES},
    **{f"is{name}": _plain(f"is{name}") for name in (*_QUESTIONS, "title", "upper")},
    **{name: _strip(name) for name in ("strip", "lstrip", "rstrip")},
    **{name: _affix(name) for name in ("startswith", "endswith")},
    **{name: _without(name) for name in ("removeprefix", "removesuffix")},
    **{name: _find(name) for name in ("find", "rfind", "index", "rindex", "count")},
    **{name: _partition(name) for name in ("partition", "rpartition")},
    **{name: _split(name) for name in ("split", "rsplit")},
    "splitlines": _splitlines,
    "replace": replaced,
    "join": _join,
    "format": _format,
}
_DICT_METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    "get": _get,
    **{name: _listed(name) for name in ("keys", "values", "items")},
}
_SEQUENCE_METHODS: Final[Mapping[str, Callable[..., Any]]] = {"count": _count, "index": _index}
_METHODS: Final[Mapping[type, Mapping[str, Callable[..., Any]]]] = {
    str: _TEXT_METHODS,
    dict: _DICT_METHODS,
    list: _SEQUENCE_METHODS,
    tuple: _SEQUENCE_METHODS,
}
