"""Errors a client caused, as values that any HTTP shell can answer in OpenAI's shape."""

from typing import Any


class InvalidRequest(Exception):  # noqa: N818 - the field's word, and not a fault of ours
    """The request is wrong in a way the caller can mend: always a 400.

    `param` is the dotted path of the offending field; `code` is one of OpenAI's strings.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def error_object(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error body; all four members are always present."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
