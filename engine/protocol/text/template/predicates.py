"""What may stand after `is` in a template: functions `(work, value, ...)` of our own."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from engine.protocol.text.template.methods import attribute
from engine.protocol.text.template.values import (
    SCALARS,
    SEQUENCES,
    Undefined,
    calculate,
    compare,
    contains,
    equal,
    text_of,
)
from engine.protocol.text.template.work import TemplateError, Work


def _text_is(method: str) -> Callable[..., Any]:
    return lambda work, value: attribute(work, text_of(work, value), method).call(work, [], {})


def _same(work: Work, value: Any, other: Any) -> bool:
    if value is other:
        return True
    return isinstance(value, SCALARS) and type(value) is type(other) and equal(work, value, other)


def _divisible(work: Work, value: Any, by: Any, rest: int = 0) -> bool:
    del work
    return bool(calculate(operator.mod, value, by) == rest)


def _is(predicate: Callable[[Any], bool]) -> Callable[..., bool]:
    def call(work: Work, value: Any) -> bool:
        del work
        return predicate(value)

    return call


def _compares(operation: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    return lambda work, value, other: compare(work, value, other, operation)


def _not_equal(work: Work, value: Any, other: Any) -> bool:
    return not equal(work, value, other)


def apply_test(work: Work, name: Any, value: Any, *args: Any, **kwargs: Any) -> bool:
    """`value is name(...)`."""
    work.spend(1)
    function = TESTS.get(name) if isinstance(name, str) else None
    if function is None:
        raise TemplateError("uses a test that is not supported")
    return bool(function(work, value, *args, **kwargs))


_EQUAL: Final = dict.fromkeys(("eq", "equalto", "=="), equal)
_UNEQUAL: Final = dict.fromkeys(("ne", "!="), _not_equal)
TESTS: Final[Mapping[str, Callable[..., Any]]] = {
    **_EQUAL,
    **_UNEQUAL,
    **dict.fromkeys(("lt", "lessthan", "<"), _compares(operator.lt)),
    **dict.fromkeys(("le", "<="), _compares(operator.le)),
    **dict.fromkeys(("gt", "greaterthan", ">"), _compares(operator.gt)),
    **dict.fromkeys(("ge", ">="), _compares(operator.ge)),
    "boolean": _is(lambda value: isinstance(value, bool)),
    "callable": _is(lambda value: hasattr(type(value), "call")),
    "defined": _is(lambda value: not isinstance(value, Undefined)),
    "divisibleby": _divisible,
    "even": lambda work, value: _divisible(work, value, 2),
    "false": _is(lambda value: value is False),
    "float": _is(lambda value: isinstance(value, float)),
    "in": lambda work, value, container: contains(work, container, value),
    "integer": _is(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "iterable": _is(lambda value: isinstance(value, (str, dict, *SEQUENCES, Undefined))),
    "lower": _text_is("islower"),
    "mapping": _is(lambda value: isinstance(value, dict)),
    "none": _is(lambda value: value is None),
    "number": _is(lambda value: isinstance(value, int | float)),
    "odd": lambda work, value: _divisible(work, value, 2, rest=1),
    "sameas": _same,
    "sequence": _is(lambda value: isinstance(value, (str, dict, *SEQUENCES, Undefined))),
    "string": _is(lambda value: isinstance(value, str)),
    "true": _is(lambda value: value is True),
    "undefined": _is(lambda value: isinstance(value, Undefined)),
    "upper": _text_is("isupper"),
}
