"""Parse a request body once, so strictly that no second parser could read it differently.

Refused beyond broken JSON: anything but an object, duplicate keys, NaN and Infinity (also by
overflow), lone surrogates, NUL in text, nesting over `MAX_DEPTH`, over `MAX_NODES` objects, arrays
and members, invalid UTF-8.
"""

import json
import math
import re
from typing import Any, Final, NoReturn

from engine.protocol.errors import InvalidRequest

MAX_DEPTH: Final = 32
"""How many objects and arrays may be open at once; the body itself is the first."""
MAX_NODES: Final = 2**16
"""How many objects, arrays and members there may be: the parser holds up all threads for them."""

# Possessive, and right for any input: strings that never end, too, are skipped in one pass.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.?+)*+"?', re.DOTALL)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequest, its code None, for everything else."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("The request body is not valid UTF-8.") from None
    if _num_nodes(text) > MAX_NODES and _num_nodes(_STRING.sub("", text)) > MAX_NODES:
        raise InvalidRequest(
            f"The request body has more than {MAX_NODES} objects, arrays and members."
        )
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # also the interpreter's own limit on digits of an integer
        raise InvalidRequest("The request body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InvalidRequest("The request body must be a JSON object.")
    if _may_be_hostile(text):
        _check_tree(value)
    return value


def _num_nodes(text: str) -> int:
    """An upper bound; exact where no text holds a bracket or a colon."""
    return text.count("[") + text.count("{") + text.count(":")


def _may_be_hostile(text: str) -> bool:
    """Only an escape can make a surrogate or NUL, only brackets depth: else no walk is needed."""
    return "\\u" in text or text.count("[") + text.count("{") > MAX_DEPTH


def _check_tree(root: dict[str, Any]) -> None:
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                _check_text(node)
            elif isinstance(node, dict):
                below.extend(node.keys())
                below.extend(node.values())
            elif isinstance(node, list):
                below.extend(node)
        level = below
        if not level:
            return
    for node in level:
        if isinstance(node, dict | list):
            raise _too_deep()
        if isinstance(node, str):
            _check_text(node)


def _check_text(text: str) -> None:
    if "\x00" in text:
        raise InvalidRequest("The request body contains a NUL character.")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest("The request body contains a lone surrogate.")


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"The request body is nested more than {MAX_DEPTH} levels deep.")


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise InvalidRequest("The request body has a duplicate key in one of its objects.")
    return value


def _finite_float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise _not_finite()
    return value


def _refuse_constant(_name: str) -> NoReturn:
    raise _not_finite()


def _not_finite() -> InvalidRequest:
    return InvalidRequest("The request body contains a number that is not finite.")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique_pairs, parse_float=_finite_float, parse_constant=_refuse_constant
)
