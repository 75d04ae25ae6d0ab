"""Typed look-ups in what an untrusted file says of a model; failures name file and field."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.protocol.text.errors import ModelFileError

MAX_LAYERS = 1024
MAX_DIMENSION = 1 << 20
MAX_CONTEXT = 1 << 30
_SMALLEST, _LARGEST = 1e-30, 1e30


class Fields:
    """The fields of one mapping, their names prefixed by `prefix`. A null is an absent field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self._prefix = prefix

    def error(self, reason: str) -> ModelFileError:
        """An error that names the file."""
        return ModelFileError(self.path, reason)

    def stated(self, name: str) -> Any:
        """The field's value, null as None; refuse a file that leaves it to a default."""
        if self._prefix + name not in self.values:
            raise self.error(f"{self._prefix}{name} is not stated")
        return self.values[self._prefix + name]

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, whatever its type."""
        value = self.values.get(self._prefix + name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None, limit: int = MAX_DIMENSION) -> int:
        """A count from 1 to `limit`."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self.error(f"{self._prefix}{name} is {value!r}, not a count from 1 to {limit}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above zero that fp32 holds with all its digits."""
        value = self.get(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not _SMALLEST <= value <= _LARGEST:
            raise self.error(f"{self._prefix}{name} is {value!r}, not a positive number")
        return float(value)

    def truth(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.error(f"{self._prefix}{name} is {value!r}, not true or false")
        return value

    def refuse(self, name: str, accepted: tuple[Any, ...] = ()) -> None:
        """Refuse the field unless it is absent or one of `accepted`."""
        value = self.get(name)
        if value is not None and value not in accepted:
            raise self.error(f"{self._prefix}{name} = {value!r} is not supported")
