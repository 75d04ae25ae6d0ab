"""The values that a template computes with, and what may be done with any of them.

They are texts, numbers, None, lists, tuples, dicts with such keys, and the objects defined here: a
closed world, in which nothing leads to an attribute of a Python object. Lists can hold one another
many times over, so whatever goes through one takes work for every item it meets.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from engine.protocol.text.template.work import TemplateError, Work

_MAX_DEPTH: Final = 64
_NESTED: Final = 4  # units for going into a list within a list
_MAX_INTEGER: Final = 1 << 63
SCALARS: Final = (str, int, float, type(None))  # bool is an int
SEQUENCES: Final = (list, tuple)


class Undefined:
    """What a name, key or index that does not exist stands for: false, empty, equal to itself."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


UNDEFINED: Final = Undefined()


class Namespace:
    """What `namespace(...)` gives: the one thing whose attributes a template may set."""

    __slots__ = ("attributes",)

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes


class Function(Protocol):
    """Whatever a template may call: a macro, a method of a value, or a global."""

    def call(self, work: Work, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result; raises TemplateError."""
        ...


class Native:
    """A function of ours: `function(work, *args, **kwargs)`."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def call(self, work: Work, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """See `Function.call`."""
        return self._function(work, *args, **kwargs)


class Loop:
    """`loop` inside a for statement; `index` counts from one."""

    __slots__ = ("_changed", "items", "place")

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.place = 0
        self._changed: Any = UNDEFINED

    def attribute(self, name: str) -> Any:
        """The attribute of that name, or UNDEFINED."""
        reader = _LOOP_ATTRIBUTES.get(name)
        return UNDEFINED if reader is None else reader(self)

    def neighbour(self, step: int) -> Any:
        """The item so many places further, or UNDEFINED."""
        place = self.place + step
        return self.items[place] if 0 <= place < len(self.items) else UNDEFINED

    def cycle(self, work: Work, *values: Any) -> Any:
        """One of the values after another, beginning anew after the last."""
        del work
        if not values:
            raise TemplateError("has nothing to cycle through")
        return values[self.place % len(values)]

    def is_changed(self, work: Work, *values: Any) -> bool:
        """Whether the values differ from those of the call before."""
        before, self._changed = self._changed, values
        return not equal(work, before, values)


_LOOP_ATTRIBUTES: Final[Mapping[str, Callable[[Any], Any]]] = {
    "index": lambda loop: loop.place + 1,
    "index0": lambda loop: loop.place,
    "revindex": lambda loop: len(loop.items) - loop.place,
    "revindex0": lambda loop: len(loop.items) - loop.place - 1,
    "first": lambda loop: loop.place == 0,
    "last": lambda loop: loop.place == len(loop.items) - 1,
    "length": lambda loop: len(loop.items),
    "previtem": lambda loop: loop.neighbour(-1),
    "nextitem": lambda loop: loop.neighbour(1),
    "cycle": lambda loop: Native(loop.cycle),
    "changed": lambda loop: Native(loop.is_changed),
}


def text_of(work: Work, value: Any) -> str:
    """What a template prints for a value: as Python's `str`; nothing for UNDEFINED."""
    if isinstance(value, str):
        return value
    if isinstance(value, Undefined):
        return ""
    return _repr(work, value, _MAX_DEPTH)


def _repr(work: Work, value: Any, depth: int) -> str:
    work.spend(1)
    if isinstance(value, str):
        work.make(10 * len(value))  # at worst every character is written as its code point
        return repr(value)
    if isinstance(value, SCALARS):
        return str(value)
    check_depth(depth)
    work.spend(_NESTED)
    if isinstance(value, dict):
        pairs = (
            f"{_repr(work, key, depth - 1)}: {_repr(work, item, depth - 1)}"
            for key, item in value.items()
        )
        return f"{{{joined(work, ', ', list(pairs))}}}"
    if isinstance(value, SEQUENCES):
        inner = joined(work, ", ", [_repr(work, item, depth - 1) for item in value])
        if isinstance(value, list):
            return f"[{inner}]"
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TemplateError("prints what has no text")


def joined(work: Work, separator: str, texts: list[str]) -> str:
    """`separator.join(texts)`."""
    work.make(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def check_depth(depth: int) -> None:
    """Refuse lists within lists beyond reason."""
    if not depth:
        raise TemplateError("nests lists too deeply")


def items_of(work: Work, value: Any) -> list[Any]:
    """What a loop over the value goes through, as a new list."""
    if isinstance(value, (str, list, tuple, dict)):
        work.spend(len(value))
        return list(value)
    if isinstance(value, Undefined):
        return []
    raise TemplateError("goes through what is no list")


def equal(work: Work, left: Any, right: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether they are equal, as Python has it."""
    work.spend(1)
    if isinstance(left, str) and isinstance(right, str):
        work.read(min(len(left), len(right)))
        return left == right
    if isinstance(left, SCALARS) and isinstance(right, SCALARS):
        return bool(left == right)
    if left is right or (isinstance(left, Undefined) and isinstance(right, Undefined)):
        return True
    check_depth(depth)
    work.spend(_NESTED)
    if isinstance(left, SEQUENCES) and type(left) is type(right):
        return len(left) == len(right) and all(
            equal(work, a, b, depth - 1) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return len(left) == len(right) and all(
            key in right and equal(work, item, right[key], depth - 1) for key, item in left.items()
        )
    return False


def contains(work: Work, container: Any, item: Any) -> bool:
    """`item in container`."""
    if isinstance(container, str):
        if not isinstance(item, str):
            raise TemplateError("looks in a text for what is no text")
        work.search(len(container), len(item))
        return item in container
    if isinstance(container, dict):
        return key_of(work, item) in container
    if isinstance(container, SEQUENCES):
        return any(equal(work, item, other) for other in container)
    if isinstance(container, Undefined):
        return False
    raise TemplateError("looks for something in what is no list")


def key_of(work: Work, value: Any) -> Any:
    """A value that a dict may have as a key."""
    if not isinstance(value, SCALARS):
        raise TemplateError("has a key that is neither text nor number")
    if isinstance(value, str):
        work.read(len(value))
    return value


def compare(
    work: Work,
    left: Any,
    right: Any,
    operation: Callable[[Any, Any], bool],
    depth: int = _MAX_DEPTH,
) -> bool:
    """`left < right` and the like: of two numbers, two texts, or two lists of such."""
    work.spend(1)
    if isinstance(left, str) and isinstance(right, str):
        work.read(min(len(left), len(right)))
        return operation(left, right)
    if _is_number(left) and _is_number(right):
        return operation(left, right)
    if not isinstance(left, SEQUENCES) or type(left) is not type(right):
        raise TemplateError("puts in order what has none")
    check_depth(depth)
    for one, other in zip(left, right, strict=False):
        if not equal(work, one, other, depth - 1):
            return compare(work, one, other, operation, depth - 1)
    return operation(len(left), len(right))


def add(work: Work, left: Any, right: Any) -> Any:
    """`left + right`: of two texts, lists, tuples or numbers."""
    if isinstance(left, str) and isinstance(right, str):
        work.make(len(left) + len(right))
        return left + right
    if isinstance(left, SEQUENCES) and type(left) is type(right):
        work.spend(len(left) + len(right))
        return operator.add(left, right)
    return calculate(operator.add, left, right)


def multiply(work: Work, left: Any, right: Any) -> Any:
    """`left * right`: of two numbers, or a text and how often it is repeated."""
    for text, times in ((left, right), (right, left)):
        if isinstance(text, str) and isinstance(times, int):
            work.make(len(text) * max(times, 0))
            return text * times
    return calculate(operator.mul, left, right)


def calculate(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """An operation on two numbers, with a result that fits into 64 bits."""
    if not (_is_number(left) and _is_number(right)):
        raise TemplateError("calculates with what is no number")
    return bounded(operation(left, right))


def bounded(number: Any) -> Any:
    """The number, if it is one of at most 64 bits: others could grow without end."""
    if isinstance(number, int) and not -_MAX_INTEGER <= number < _MAX_INTEGER:
        raise TemplateError("calculates beyond 64 bits")
    return number


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def texts_of(values: Iterable[Any]) -> list[str]:
    """The values, all of which are texts."""
    texts = list(values)
    if not all(isinstance(text, str) for text in texts):
        raise TemplateError("needs texts where something else is")
    return texts
