"""Logs through the standard library, as text or JSON lines on standard error.

No body, key or salt is ever logged, and an exception shows as types and places only: its message
may quote what a client sent.
"""

import json
import logging
import sys
from types import TracebackType

from gateway.guard import where

ExceptionInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; an exception shows as types and places, never its message."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, logger and message."""
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry["exception"] = where(record.exc_info[1])
        return json.dumps(entry)


class TextFormatter(logging.Formatter):
    """For people; an exception shows as types and places, never its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatException(self, ei: ExceptionInfo) -> str:  # noqa: N802 - logging's name
        """Types and places only."""
        return where(ei[1]) if ei[1] is not None else ""


def configure_logging(log_format: str) -> None:
    """Log to standard error; uvicorn's loggers too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # One line per request would cost more than the request; metrics count them.
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate = [], False
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
