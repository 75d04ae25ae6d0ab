"""Small checks that turn one JSON value into one Python value, or say what is wrong with it.

A check takes the value and its dotted path. It raises InvalidRequest with OpenAI's code and
that path; of the client's own text a message repeats at most `MAX_ECHO` characters.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine.protocol.errors import InvalidRequest

Check = Callable[[Any, str], Any]

MAX_ECHO: Final = 64
_JSON_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "decimal",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One row of a table: how a member is read, and whether it may be missing or null."""

    check: Check
    required: bool = False


Table = Mapping[str, Field]


def read_object(value: Any, path: str, table: Table) -> dict[str, Any]:
    """The members of `value` that are present and not null, each through its check.

    Closed: a member that `table` does not name is refused before anything else is looked at.
    """
    members: dict[str, Any] = expect(value, path, dict, "an object")
    for name in members:
        if name not in table:
            raise _unknown(join(path, clip(name)))
    parsed: dict[str, Any] = {}
    for name, field in table.items():
        member = members.get(name)
        if member is not None:
            parsed[name] = field.check(member, join(path, name))
        elif field.required:
            raise _absent(join(path, name), given=name in members)
    return parsed


# --- refusals ----------------------------------------------------------------------------------


def invalid_type(path: str, wanted: str, value: Any) -> InvalidRequest:
    """The value has the wrong JSON type."""
    got = _JSON_TYPES.get(type(value), "value")
    article = "an" if got[0] in "aeiou" else "a"
    message = f"Invalid type for '{path}': expected {wanted}, but got {article} {got} instead."
    return InvalidRequest(message, param=path, code="invalid_type")


def invalid_value(path: str, rule: str) -> InvalidRequest:
    """The value has the right type and lies outside what is allowed; `rule` says what is."""
    return InvalidRequest(f"Invalid value for '{path}': {rule}.", param=path, code="invalid_value")


def unsupported(path: str, what: str = "this parameter") -> InvalidRequest:
    """The value means something in OpenAI's API that this server does not do."""
    message = f"Unsupported parameter: '{path}': {what} is not supported by this server."
    return InvalidRequest(message, param=path, code="unsupported_parameter")


def _unknown(path: str) -> InvalidRequest:
    message = f"Unknown parameter: '{path}'."
    return InvalidRequest(message, param=path, code="unknown_parameter")


def _absent(path: str, *, given: bool) -> InvalidRequest:
    if given:
        return InvalidRequest(
            f"Invalid type for '{path}': it must not be null.", param=path, code="invalid_type"
        )
    message = f"Missing required parameter: '{path}'."
    return InvalidRequest(message, param=path, code="missing_required_parameter")


def clip(text: str) -> str:
    """The client's text as far as it may be repeated: short, and free of control characters."""
    shown = text if len(text) <= MAX_ECHO else text[: MAX_ECHO - 1] + "…"
    return "".join(c if c.isprintable() else "?" for c in shown)


def join(path: str, name: str) -> str:
    """The dotted path of member `name` of the object at `path`."""
    return f"{path}.{name}" if path else name


# --- checks ------------------------------------------------------------------------------------


def expect(value: Any, path: str, kind: type, wanted: str) -> Any:
    """`value` itself when its JSON type is exactly `kind` (a boolean is not an integer)."""
    if type(value) is not kind:
        raise invalid_type(path, wanted, value)
    return value


def boolean(value: Any, path: str) -> bool:
    """A boolean."""
    return bool(expect(value, path, bool, "a boolean"))


def integer(low: int, high: int) -> Check:
    """An integer of the closed range; 1.0 is a decimal and is refused."""

    def check(value: Any, path: str) -> int:
        number: int = expect(value, path, int, "an integer")
        if not low <= number <= high:
            raise invalid_value(path, f"it must be an integer from {low} to {high}")
        return number

    return check


def number(low: float, high: float, *, above_low: bool = False) -> Check:
    """A number of the range, without its low end where `above_low`."""
    rule = f"it must be {'above' if above_low else 'at least'} {low:g} and at most {high:g}"

    def check(value: Any, path: str) -> float:
        if type(value) not in {int, float}:
            raise invalid_type(path, "a number", value)
        if not low <= value <= high or (above_low and value == low):
            raise invalid_value(path, rule)
        return float(value)

    return check


def text(max_bytes: int | None = None, *, empty: bool = True) -> Check:
    """A string, in UTF-8 at most `max_bytes` long, and not empty unless `empty`."""

    def check(value: Any, path: str) -> str:
        given: str = expect(value, path, str, "a string")
        if not given and not empty:
            raise invalid_value(path, "it must not be empty")
        if max_bytes is not None and len(given.encode()) > max_bytes:
            raise invalid_value(path, f"it must be at most {max_bytes} bytes long")
        return given

    return check


def visible_ascii(max_length: int) -> Check:
    """A non-empty string of visible ASCII characters, safe in a header and in a log line."""

    def check(value: Any, path: str) -> str:
        given: str = expect(value, path, str, "a string")
        if not 0 < len(given) <= max_length or not all("!" <= c <= "~" for c in given):
            raise invalid_value(path, f"it must be 1 to {max_length} visible ASCII characters")
        return given

    return check


def choice(*options: str) -> Check:
    """One of the given strings."""
    rule = "it must be one of " + ", ".join(f"'{option}'" for option in options)

    def check(value: Any, path: str) -> str:
        given: str = expect(value, path, str, "a string")
        if given not in options:
            raise invalid_value(path, rule)
        return given

    return check


def array(item: Check, max_items: int, *, empty: bool = True) -> Check:
    """A list whose every item passes `item`, as a tuple."""
    rule = f"it must have {'at most' if empty else 'from 1 to'} {max_items} items"

    def check(value: Any, path: str) -> tuple[Any, ...]:
        items: list[Any] = expect(value, path, list, "an array")
        if len(items) > max_items or not (items or empty):
            raise invalid_value(path, rule)
        return tuple(item(each, f"{path}[{index}]") for index, each in enumerate(items))

    return check


def json_object(value: Any, path: str) -> dict[str, Any]:
    """Any object, its members unread: for fields that are accepted and ignored."""
    members: dict[str, Any] = expect(value, path, dict, "an object")
    return members


def only(*accepted: Any) -> Check:
    """A known field this server does not act on: accepted where leaving it out means the same."""

    def check(value: Any, path: str) -> Any:
        if not any(_same(value, each) for each in accepted):
            raise unsupported(path, "this value" if accepted else "this parameter")
        return value

    return check


def _same(left: Any, right: Any) -> bool:
    """JSON equality: 1 equals 1.0, and neither equals true."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
