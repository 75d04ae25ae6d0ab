"""What is wrong with a model's files, in one sentence that names the file."""

from pathlib import Path
from typing import Final

_MAX_REASON: Final = 300  # characters: a reason may quote what a file says


class ModelFileError(Exception):
    """A model file or folder is missing, damaged, hostile or of a kind we do not serve."""

    def __init__(self, path: Path, reason: str) -> None:
        reason = " ".join(reason.split())
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
