"""What is wrong with a model's files, in one sentence that names the file."""

from pathlib import Path


class ModelFileError(Exception):
    """A model file or folder is missing, damaged, hostile or of a kind we do not serve."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
