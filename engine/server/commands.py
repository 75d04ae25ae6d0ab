"""What the event loop asks of the engine thread, and what that tells it after a turn."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.core.engine_core import EngineCore
from engine.server.journey import Ended, Submission
from engine.server.places import Place
from engine.server.stream import Event, TokenStream


@dataclass(frozen=True, slots=True)
class Add:
    """Run this request."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class Abort:
    """By id from outside; by `stream` from our own handlers, which may hold a refused id."""

    request_id: str
    stream: TokenStream | None = None
    answer: "asyncio.Future[Any] | None" = None


@dataclass(frozen=True, slots=True)
class Call:
    """Do something to the core between two steps."""

    run: Callable[[EngineCore], Any]
    answer: "asyncio.Future[Any]"


@dataclass(frozen=True, slots=True)
class FailAll:
    """End every request with this error."""

    error: Exception


Command = Add | Abort | Call | FailAll


@dataclass(frozen=True, slots=True)
class Answer:
    """What a future is to be set to."""

    future: "asyncio.Future[Any]"
    value: Any = None
    error: Exception | None = None

    def give(self) -> None:
        """On the event loop; whoever asked may have gone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


@dataclass(slots=True)
class Outbox:
    """What one turn has to say to the event loop; `began` and `released` are places."""

    events: list[tuple[TokenStream, Event]] = field(default_factory=list)
    began: list[Place] = field(default_factory=list)
    released: list[Place] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.events or self.began or self.released or self.answers)
