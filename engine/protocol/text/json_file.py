"""The JSON files of a model folder, read with caps on their size and on what they make of it."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.model_file import ModelFile

_MAX_BYTES: Final = 64 << 20
# An empty object takes three bytes of a file and 64 of memory; Gemma's merges are 600,000 pairs.
_MAX_CONTAINERS: Final = 1 << 21
_ESCAPE: Final = b"\\u"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises ModelFileError."""
    with ModelFile(path) as file:
        if file.size > _MAX_BYTES:
            reason = f"is {file.size} bytes long, too large for what it should be"
            raise ModelFileError(path, reason)
        data = file.read(0, file.size)
    try:
        return parse_json(data)
    except ValueError as error:
        raise ModelFileError(path, str(error)) from error


def parse_json(data: bytes | bytearray, *, unique_names: bool = False) -> dict[str, Any]:
    """The JSON object (RFC 8259, UTF-8) in `data`.

    ValueError says in a verb phrase what is wrong; of a name that an object repeats only if
    `unique_names`, else the last counts.
    """
    if data.count(b"[") + data.count(b"{") > _MAX_CONTAINERS:
        raise ValueError("holds too many lists and objects")
    try:
        value = json.loads(
            data.decode(),
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique if unique_names else None,
        )
        if _ESCAPE in data:  # half of a surrogate pair is no character, and no UTF-8 can hold it
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError("is not valid JSON") from error
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - the one kind that callers expect
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    items = list(pairs)
    value = dict(items)
    if len(value) != len(items):
        raise ValueError("a name is repeated")
    return value
