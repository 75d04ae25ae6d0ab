"""What the gateway asks of an engine, whoever runs it: the port and its values.

Every failure is one of the errors below, so a caller decides by type whether a request may go
elsewhere. No message of an engine reaches a client except through `EngineRefused`.
"""

# ruff: noqa: N818 - named for what happened

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fairness.types import ReplicaCapacity


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """One answer of `GET /capacity`."""

    replica: ReplicaCapacity
    max_model_len: int
    model: str


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token as the engine scored it: its log-probability and the likeliest ones in its place.

    `logprob` is None for the first token of an echoed prompt, which nothing comes before.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """One choice's part of a completion stream, or no choice's (`index` None): counts alone.

    The counts are totals so far of the whole request, over all its choices; None where unsaid.
    """

    index: int | None = 0
    text: str = ""
    finish_reason: str | None = None
    logprobs: tuple[ScoredToken, ...] = ()
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


class EngineError(Exception):
    """Base: the engine did not do what was asked."""


class EngineUnreachable(EngineError):
    """No connection could be made: the request never left us."""


class EngineBroken(EngineError):
    """The connection broke or carried something other than the protocol."""


class EngineTimeout(EngineError):
    """Silence beyond the read timeout."""


class EngineRefused(EngineError):
    """The engine answered with an error object instead of a stream."""

    def __init__(self, status: int, message: str, code: str | None) -> None:
        super().__init__(f"engine answered {status}")
        self.status = status
        self.message = message
        self.code = code


class EngineStream(Protocol):
    """An answer under way. Its owner calls `finish` after the end, or `kill` before it."""

    async def next(self) -> list[EngineEvent]:
        """The next events, or an empty list at the regular end. Raises EngineError."""

    async def finish(self) -> None:
        """After the end: give the connection back for reuse."""

    def kill(self) -> None:
        """Drop the connection; a pending `next` fails with `EngineBroken`."""


class EngineClient(Protocol):
    """One replica."""

    @property
    def name(self) -> str:
        """The replica's id in metrics and in the dispatcher."""

    async def start(self, body: bytes, headers: Mapping[str, str], choices: int) -> EngineStream:
        """Send one completion request for so many choices. Raises EngineError."""

    async def abort(self, request_id: str) -> None:
        """Ask the engine to end a request now; idempotent. Raises EngineError."""

    async def capacity(self) -> EngineCapacity:
        """What it can hold. Raises EngineError."""

    async def metrics(self) -> bytes:
        """Its metrics page. Raises EngineError."""

    async def close(self) -> None:
        """Close all connections."""
