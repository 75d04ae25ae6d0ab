"""The filters that a template may use: functions `(work, value, ...)` of our own."""

import json
import operator
from collections.abc import Callable, Mapping
from functools import cmp_to_key
from typing import Any, Final

from engine.protocol.text.template.methods import attribute, item, replaced
from engine.protocol.text.template.predicates import apply_test
from engine.protocol.text.template.values import (
    SCALARS,
    SEQUENCES,
    UNDEFINED,
    Undefined,
    bounded,
    calculate,
    check_depth,
    compare,
    contains,
    items_of,
    joined,
    text_of,
)
from engine.protocol.text.template.work import TemplateError, Work

_MAX_DEPTH: Final = 64
_NESTED: Final = 4  # units for going into a list within a list
_MAX_INDENT: Final = 16
_LONGEST_NUMBER: Final = 40  # characters
_ESCAPES: Final = {"&": "&amp;", ">": "&gt;", "<": "&lt;", "'": "&#39;", '"': "&#34;"}


def _on_text(name: str) -> Callable[..., Any]:
    """A method of texts as a filter, which takes the text of whatever it is given."""

    def call(work: Work, value: Any, *args: Any) -> Any:
        return attribute(work, text_of(work, value), name).call(work, list(args), {})

    return call


def _default(work: Work, value: Any, default: Any = "", boolean: Any = None) -> Any:
    del work
    return default if isinstance(value, Undefined) or (boolean and not value) else value


def _length(work: Work, value: Any) -> int:
    if isinstance(value, Undefined):
        return 0
    if isinstance(value, (str, dict, *SEQUENCES)):
        return len(value)
    return len(items_of(work, value))


def _join(work: Work, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = items_of(work, value)
    if attribute is not None:
        items = [path(work, one, attribute) for one in items]
    return joined(work, text_of(work, d), [text_of(work, one) for one in items])


def _first(work: Work, value: Any) -> Any:
    if isinstance(value, dict):
        value = items_of(work, value)
    return UNDEFINED if isinstance(value, Undefined) else item(work, value, 0)


def _last(work: Work, value: Any) -> Any:
    if isinstance(value, dict):
        value = items_of(work, value)
    return UNDEFINED if isinstance(value, Undefined) else item(work, value, -1)


def _reverse(work: Work, value: Any) -> Any:
    if isinstance(value, str):
        work.make(len(value))
        return value[::-1]
    return items_of(work, value)[::-1]


def _replace(work: Work, value: Any, old: Any, new: Any, count: Any = -1) -> str:
    old, new = text_of(work, old), text_of(work, new)
    return replaced(work, text_of(work, value), old, new, -1 if count is None else count)


def _escape(work: Work, value: Any) -> str:
    text = text_of(work, value)
    for character, escaped in _ESCAPES.items():
        text = replaced(work, text, character, escaped)
    return text


def _int(work: Work, value: Any, default: Any = 0) -> Any:
    del work
    try:
        return bounded(int(_short(value)))
    except (TypeError, ValueError, OverflowError):
        try:
            return bounded(int(float(_short(value))))
        except (TypeError, ValueError, OverflowError):
            return default


def _float(work: Work, value: Any, default: Any = 0.0) -> Any:
    del work
    try:
        return float(_short(value))
    except (TypeError, ValueError, OverflowError):
        return default


def _short(value: Any) -> Any:
    """A number, or a text that is short enough for one: reading long ones takes quadratic time."""
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        raise ValueError("is too long for a number")
    return value


def _round(work: Work, value: Any, precision: Any = 0) -> Any:
    del work
    if not isinstance(precision, int) or not 0 <= precision <= _MAX_INDENT:
        raise TemplateError("rounds to an impossible precision")
    return calculate(lambda number, digits: round(float(number), digits), value, precision)


def _abs(work: Work, value: Any) -> Any:
    del work
    return calculate(lambda number, _: abs(number), value, 0)


def _sum(work: Work, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for one in items_of(work, value):
        part = one if attribute is None else path(work, one, attribute)
        total = calculate(operator.add, total, part)
    return total


def _sorted(
    work: Work,
    value: Any,
    reverse: Any = None,
    case_sensitive: Any = None,
    attribute: Any = None,
) -> list[Any]:
    keyed = [
        (_sort_key(work, one, attribute, case_sensitive), one) for one in items_of(work, value)
    ]

    def order(left: tuple[Any, Any], right: tuple[Any, Any]) -> int:
        return _order(work, left[0], right[0])

    return [one for _, one in sorted(keyed, key=cmp_to_key(order), reverse=bool(reverse))]


def _sort_key(work: Work, value: Any, attribute: Any, case_sensitive: Any) -> Any:
    key = value if attribute is None else path(work, value, attribute)
    if isinstance(key, str) and not case_sensitive:
        work.make(len(key))
        return key.lower()
    return key


def _order(work: Work, left: Any, right: Any) -> int:
    if compare(work, left, right, operator.lt):
        return -1
    return int(compare(work, right, left, operator.lt))


def _extreme(place: int) -> Callable[..., Any]:
    def call(work: Work, value: Any, case_sensitive: Any = None, attribute: Any = None) -> Any:
        ordered = _sorted(work, value, case_sensitive=case_sensitive, attribute=attribute)
        return ordered[place] if ordered else UNDEFINED

    return call


def _dictsort(work: Work, value: Any, case_sensitive: Any = None, by: Any = "key") -> list[Any]:
    if not isinstance(value, dict) or by not in {"key", "value"}:
        raise TemplateError("sorts as a dict what is none")
    work.spend(len(value))
    return _sorted(
        work,
        list(value.items()),
        case_sensitive=case_sensitive,
        attribute=0 if by == "key" else 1,
    )


def _unique(work: Work, value: Any, case_sensitive: Any = None, attribute: Any = None) -> list[Any]:
    seen: list[Any] = []
    kept: list[Any] = []
    for one in items_of(work, value):
        key = _sort_key(work, one, attribute, case_sensitive)
        if not contains(work, seen, key):
            seen.append(key)
            kept.append(one)
    return kept


def _items(work: Work, value: Any) -> list[Any]:
    if isinstance(value, Undefined):
        return []
    if not isinstance(value, dict):
        raise TemplateError("takes as a dict what is none")
    work.spend(len(value))
    return list(value.items())


def _indent(work: Work, value: Any, width: Any = 4, first: Any = None, blank: Any = None) -> str:
    text = text_of(work, value)
    if isinstance(width, int) and 0 <= width <= _MAX_INDENT:
        margin = " " * width
    elif isinstance(width, str) and len(width) <= _MAX_INDENT:
        margin = width
    else:
        raise TemplateError("indents too far")
    work.make(len(text) + (text.count("\n") + 1) * (len(margin) + 1))
    lines = f"{text}\n".splitlines() or [""]
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def _tojson(
    work: Work,
    value: Any,
    *,
    ensure_ascii: Any = None,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = None,
) -> str:
    """As transformers has it: without the escapes for HTML, which no model was trained on."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        raise TemplateError("indents too far")
    if separators is not None:
        separators = tuple(items_of(work, separators))
        if [type(one) for one in separators] != [str, str]:
            raise TemplateError("separates JSON by what is no text")
    margin = 2 + (indent or 0) + sum(map(len, separators or ()))
    work.make(_json_size(work, value, margin, _MAX_DEPTH))
    try:
        return json.dumps(
            value,
            ensure_ascii=bool(ensure_ascii),
            indent=indent,
            separators=separators,
            sort_keys=bool(sort_keys),
        )
    except (TypeError, ValueError) as error:
        raise TemplateError("writes as JSON what cannot be") from error


def _json_size(work: Work, value: Any, margin: int, depth: int) -> int:
    """An upper bound of its characters as JSON; `margin` is what may surround an item a level."""
    work.spend(1)
    if isinstance(value, str):
        work.read(len(value))
        return 12 * len(value) + 2  # an escaped pair of surrogates
    if isinstance(value, SCALARS):
        return _LONGEST_NUMBER
    check_depth(depth)
    work.spend(_NESTED)
    around = margin * (_MAX_DEPTH - depth + 2) + 2
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, SEQUENCES):
        inner = list(value)
    else:
        raise TemplateError("writes as JSON what cannot be")
    return around + sum(_json_size(work, one, margin, depth - 1) + around for one in inner)


def _map(work: Work, value: Any, name: Any = None, *args: Any, **kwargs: Any) -> list[Any]:
    """`map("filter", ...)` or `map(attribute="a.b", default=...)`."""
    items = items_of(work, value)
    if name is not None:
        return [apply_filter(work, name, one, *args, **kwargs) for one in items]
    given, default = kwargs.get("attribute"), kwargs.get("default", UNDEFINED)
    found = [path(work, one, given) for one in items]
    return [default if isinstance(one, Undefined) else one for one in found]


def _select(*, by_attribute: bool, wanted: bool) -> Callable[..., Any]:
    def call(work: Work, value: Any, *args: Any) -> list[Any]:
        rest = list(args)
        name = rest.pop(0) if by_attribute and rest else None
        test = rest.pop(0) if rest else None
        kept = []
        for one in items_of(work, value):
            tried = path(work, one, name) if by_attribute else one
            passes = bool(tried) if test is None else apply_test(work, test, tried, *rest)
            if passes is wanted:
                kept.append(one)
        return kept

    return call


def path(work: Work, value: Any, name: Any) -> Any:
    """`value.a.b` for "a.b", or an item of that index."""
    work.spend(1)
    if isinstance(name, int):
        return item(work, value, name)
    if not isinstance(name, str) or len(name) > 1024:
        raise TemplateError("asks for a part without a name")
    for part in name.split("."):
        work.spend(1)
        value = item(work, value, int(part) if part.isdecimal() and len(part) < 10 else part)
    return value


def apply_filter(work: Work, name: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """`value | name(...)`."""
    work.spend(1)
    function = FILTERS.get(name) if isinstance(name, str) else None
    if function is None:
        raise TemplateError("uses a filter that is not supported")
    return function(work, value, *args, **kwargs)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: _on_text(name) for name in ("upper", "lower", "title", "capitalize")},
    "abs": _abs,
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "e": _escape,
    "escape": _escape,
    "first": _first,
    "float": _float,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": items_of,
    "map": _map,
    "max": _extreme(-1),
    "min": _extreme(0),
    "reject": _select(by_attribute=False, wanted=False),
    "rejectattr": _select(by_attribute=True, wanted=False),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": text_of,
    "select": _select(by_attribute=False, wanted=True),
    "selectattr": _select(by_attribute=True, wanted=True),
    "sort": _sorted,
    "string": text_of,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _on_text("strip"),
    "unique": _unique,
}
