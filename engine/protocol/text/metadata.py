"""Typed access to a model file's key-value metadata; whatever is missing or odd is named."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from engine.protocol.text.errors import ModelFileError

_REQUIRED: Final = object()


class Metadata:
    """A view of one file's metadata. Every accessor raises ModelFileError on a wrong type."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def error(self, reason: str) -> ModelFileError:
        """What to raise when the values do not add up."""
        return ModelFileError(self._path, reason)

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        value = self._get(key, _REQUIRED if default is None else default)
        if not isinstance(value, str):
            raise self.error(f"{key} is not a string")
        return value

    def integer(self, key: str) -> int:
        """A required integer."""
        value = self._get(key, _REQUIRED)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{key} is not an integer")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is not true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """A required list of strings."""
        return self._items(key, str, "strings")

    def integers(self, key: str) -> list[int]:
        """A required list of integers."""
        return self._items(key, int, "integers")

    def numbers(self, key: str) -> list[float]:
        """A required list of floating-point numbers."""
        return self._items(key, float, "numbers")

    def _items(self, key: str, kind: type, what: str) -> list[Any]:
        values = self._get(key, _REQUIRED)
        if not isinstance(values, list) or (values and not isinstance(values[0], kind)):
            raise self.error(f"{key} is not a list of {what}")
        return values

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise self.error(f"{key} is missing from its metadata")
        return value
