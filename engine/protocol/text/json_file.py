"""The JSON files of a model folder, read with a cap on their size."""

import json
from pathlib import Path
from typing import Any, Final

from engine.protocol.text.errors import ModelFileError

_MAX_BYTES: Final = 64 << 20


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises ModelFileError."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ModelFileError(path, f"is {size} bytes long, too large for what it should be")
        value = json.loads(path.read_bytes())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelFileError(path, f"cannot be read: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, "is not valid JSON") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "is not a JSON object")
    return value
