"""One table from what went wrong to the HTTP answer; no exception's own text reaches a client."""

# ruff: noqa: N818 - named for the condition, as callers say it

from dataclasses import dataclass, field
from typing import Any, Final

from engine.protocol.errors import InvalidRequest, error_object

RETRY_AFTER_S: Final = 1


class ServerError(Exception):
    """A failure this server answers itself: `status` and OpenAI's members, fixed texts."""

    status = 500
    kind = "server_error"
    code: str | None = None
    message = "The engine failed while processing the request."

    def __init__(self) -> None:
        super().__init__(self.message)


class GenerationFailed(ServerError):
    """A step, the detokeniser or the admission of this request raised; others go on."""


class EngineDead(ServerError):
    """The engine thread ended; nothing can be served until the process is restarted."""

    status = 503
    kind = "service_unavailable_error"
    code = "engine_dead"
    message = "The engine is not running."


class EngineStalled(ServerError):
    """Requests wait and none has run for many steps."""

    status = 503
    kind = "service_unavailable_error"
    code = "engine_stalled"
    message = "The engine makes no progress."


class EngineDraining(ServerError):
    """The process was told to stop: begun streams finish, nothing new starts."""

    status = 503
    kind = "service_unavailable_error"
    code = "shutting_down"
    message = "The engine is shutting down."


class EngineBusy(ServerError):
    """The engine's own queue is full."""

    status = 503
    kind = "service_unavailable_error"
    code = "queue_full"
    message = "The engine's queue is full."


class RequestAborted(ServerError):
    """Somebody who may do so aborted the request by its id."""

    status = 409
    kind = "invalid_request_error"
    code = "request_aborted"
    message = "The request was aborted."


class DuplicateRequestId(ServerError):
    """A request of this id is still in the engine."""

    status = 409
    kind = "invalid_request_error"
    code = "duplicate_request_id"
    message = "A request with this id is already in the engine."


class CacheInUse(ServerError):
    """A running request holds blocks of the namespace that is to be erased."""

    status = 409
    kind = "invalid_request_error"
    code = "cache_in_use"
    message = "A running request uses this cache; nothing was erased."


class PinLimitReached(ServerError):
    """Pinning would keep too many blocks from eviction."""

    status = 409
    kind = "invalid_request_error"
    code = "pin_limit_reached"
    message = "As many blocks are pinned as may be; nothing was pinned."


class SlowReader(ServerError):
    """The client read so slowly that its unsent text passed the bound."""

    code = "slow_reader"
    message = "The response was not read fast enough."


class BodyTooLarge(ServerError):
    """The request body is over the cap."""

    status = 413
    kind = "invalid_request_error"
    code = "request_too_large"
    message = "The request body is too large."


class BodyTooSlow(ServerError):
    """The request body did not arrive in time."""

    status = 408
    kind = "invalid_request_error"
    code = "request_timeout"
    message = "The request body did not arrive in time."


class ModelNotFound(ServerError):
    """The request names a model this engine does not serve."""

    status = 404
    kind = "invalid_request_error"
    code = "model_not_found"
    message = "This engine does not serve the requested model."


_FRAMEWORK: Final = {
    404: ("invalid_request_error", "unknown_url", "Unknown request URL."),
    405: ("invalid_request_error", "method_not_supported", "This method is not allowed here."),
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An HTTP status, OpenAI's error object and the headers that go with it."""

    status: int
    body: dict[str, Any]
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())


def answer(exc: Exception) -> ErrorAnswer:
    """The answer to any exception; one that is not in the table is a plain 500."""
    if isinstance(exc, InvalidRequest):
        body = error_object(exc.message, "invalid_request_error", param=exc.param, code=exc.code)
        return ErrorAnswer(400, body)
    if not isinstance(exc, ServerError):
        exc = GenerationFailed()
    param = "model" if isinstance(exc, ModelNotFound) else None
    body = error_object(exc.message, exc.kind, param=param, code=exc.code)
    return ErrorAnswer(exc.status, body, _headers(exc.status))


def framework_answer(status: int, allow: str | None = None) -> ErrorAnswer:
    """The answer for an error the router found; `allow` lists the methods of a 405."""
    kind, code, message = _FRAMEWORK[status]
    headers = ((b"allow", allow.encode("ascii")),) if allow else ()
    return ErrorAnswer(status, error_object(message, kind, code=code), headers)


def context_length_exceeded(
    param: str, prompt_tokens: int, output_tokens: int | None, limit: int
) -> InvalidRequest:
    """The prompt and one token more can never fit, neither the context nor an empty pool.

    `output_tokens` is what was asked for, if anything; asking for too many is no error.
    """
    asked = "an answer as long as fits" if output_tokens is None else f"{output_tokens} more"
    return InvalidRequest(
        f"This engine can hold at most {limit} tokens, prompt and at least one output token "
        f"together; the prompt has {prompt_tokens}, and {asked} was asked for.",
        param=param,
        code="context_length_exceeded",
    )


def _headers(status: int) -> tuple[tuple[bytes, bytes], ...]:
    if status == 503:
        return ((b"retry-after", str(RETRY_AFTER_S).encode()),)
    if status in {408, 413}:
        return ((b"connection", b"close"),)
    return ()
