"""Checks of the single fields that need more than a type and a range: stops, prompts, token ids."""

from typing import Any, Final

from engine.protocol.checks import (
    array,
    clip,
    expect,
    integer,
    invalid_type,
    invalid_value,
    join,
    json_object,
    number,
    text,
    unsupported,
)
from engine.protocol.namespace import is_namespace

MAX_STOP_STRINGS: Final = 4
MAX_STOP_BYTES: Final = 1024
MAX_LOGIT_BIAS: Final = 300
MAX_BAD_WORDS: Final = 128
MAX_BAD_WORD_BYTES: Final = 256
MAX_TOKEN_ID: Final = 2**31 - 1
MAX_ITEMS: Final = 2**20

TOKEN_ID: Final = integer(0, MAX_TOKEN_ID)
_EACH_TOKEN_ID: Final = array(TOKEN_ID, MAX_ITEMS, empty=False)
_STOP_STRING: Final = text(MAX_STOP_BYTES, empty=False)
_STOP_STRINGS: Final = array(_STOP_STRING, MAX_STOP_STRINGS)
_BIAS: Final = number(-100, 100)
_BAD_WORD: Final = text(MAX_BAD_WORD_BYTES)


def stop(value: Any, path: str) -> tuple[str, ...]:
    """One stop string, or a list of them."""
    if isinstance(value, str):
        return (_STOP_STRING(value, path),)
    if not isinstance(value, list):
        raise invalid_type(path, "a string or an array of strings", value)
    strings: tuple[str, ...] = _STOP_STRINGS(value, path)
    return strings


def token_ids(value: Any, path: str) -> tuple[int, ...]:
    """At least one token id. Whole prompts pass at C speed; the slow check names what is wrong."""
    items: list[Any] = expect(value, path, list, "an array")
    if set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= MAX_TOKEN_ID:
        return tuple(items)
    checked: tuple[int, ...] = _EACH_TOKEN_ID(items, path)
    return checked


def prompt(value: Any, path: str) -> str | tuple[int, ...]:
    """One prompt: text, token ids, or a list of just one of these."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid_type(path, "a string or an array of token ids", value)
    if not value or not isinstance(value[0], str | list):
        return token_ids(value, path)
    if len(value) > 1:
        raise unsupported(path, "more than one prompt")
    if isinstance(value[0], str):
        return value[0]
    return token_ids(value[0], f"{path}[0]")


def logit_bias(value: Any, path: str) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, by id; an id is written in one way only, so none comes twice."""
    members = json_object(value, path)
    if len(members) > MAX_LOGIT_BIAS:
        raise invalid_value(path, f"it must have at most {MAX_LOGIT_BIAS} entries")
    return tuple(
        sorted(
            (_written_id(name, path), _BIAS(bias, join(path, clip(name))))
            for name, bias in members.items()
        )
    )


def _written_id(name: str, path: str) -> int:
    if name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_TOKEN_ID)):
        token_id = int(name)
        if token_id <= MAX_TOKEN_ID and str(token_id) == name:
            return token_id
    raise invalid_value(join(path, clip(name)), "its name must be a token id")


def _bad_word(value: Any, path: str) -> str:
    word: str = _BAD_WORD(value, path)
    if not word.strip():
        raise invalid_value(path, "it must not be blank")
    return word


bad_words: Final = array(_bad_word, MAX_BAD_WORDS)


def cache_salt(value: Any, path: str) -> str:
    """The salt is a secret: a refusal says its form and repeats nothing of it."""
    if not is_namespace(value):
        raise invalid_value(path, "it must be a cache namespace of 43 base64url characters")
    return str(value)


def metadata(value: Any, path: str) -> dict[str, Any]:
    """At most 16 pairs of strings."""
    members = json_object(value, path)
    if len(members) > 16:
        raise invalid_value(path, "it must have at most 16 pairs")
    for pair_value in members.values():
        expect(pair_value, path, str, "an object of strings")
    return members
