"""One table from domain error to HTTP answer, in OpenAI's error object, for every route and status.

A domain error carries words meant for the caller. Anything else becomes a 500 with a fixed text.
"""

# ruff: noqa: N818 - a refusal is named for what is the matter, in the words of the API

import math
from dataclasses import dataclass

import orjson

from engine.protocol.errors import InvalidRequest, error_object

Headers = list[tuple[bytes, bytes]]

INVALID = "invalid_request_error"
UNAVAILABLE = "service_unavailable_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"


class GatewayError(Exception):
    """A refusal with words for the caller; the subclass is its row in `TABLE`."""

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class MissingCredentials(GatewayError):
    """No usable `Authorization: Bearer` header."""


class InvalidKey(GatewayError):
    """Malformed, unknown, revoked or expired: one answer for all four, so none can be told."""

    def __init__(self) -> None:
        super().__init__("Incorrect API key provided.")


class ConflictingCredentials(GatewayError):
    """More than one credential was sent; we refuse to choose."""


class TenantSuspended(GatewayError):
    """The key is good and its tenant is suspended."""


class AuthUnavailable(GatewayError):
    """The key store cannot answer now; says nothing about the key."""


class ModelNotFound(GatewayError):
    """No pool serves that model."""


class UnknownUrl(GatewayError):
    """No such path."""


class MethodNotSupported(GatewayError):
    """The path exists, the method does not."""


class BodyTooLarge(GatewayError):
    """The body passed the byte cap, counted on bytes read."""


class HeadersTooLarge(GatewayError):
    """The header section passed its cap of bytes or of fields."""


class BadHttp(GatewayError):
    """The bytes are not an HTTP request we accept."""


class RequestTimeout(GatewayError):
    """The client took too long to send its request."""


class LimitExceeded(GatewayError):
    """A limit refused the request and took nothing; `dimension` and `level` say which."""

    def __init__(
        self, message: str, *, dimension: str, level: str, retry_after_s: float | None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.dimension = dimension
        self.level = level


class QueueFull(LimitExceeded):
    """The tenant's own waiting room is full."""


class QueueTimeout(GatewayError):
    """The request waited its whole time to live while replicas were up."""


class PredictedWait(GatewayError):
    """The tenant's own queue is so long that the request would outwait its time to live."""


class NoHealthyUpstream(GatewayError):
    """No replica could take the request."""


class NoReplicaFits(NoHealthyUpstream):
    """Replicas are up, and none of them could hold the request even when empty."""


class LogUnavailable(GatewayError):
    """The fairness log cannot be written, so nothing new may be granted."""


class Overloaded(GatewayError):
    """A part of the gateway or the engine refuses more work for now."""


class ShuttingDown(GatewayError):
    """The gateway is draining."""


class UpstreamFailed(GatewayError):
    """The engine broke off or answered what we cannot use."""


class UpstreamTimeout(GatewayError):
    """The engine said nothing for too long."""


@dataclass(frozen=True, slots=True)
class Row:
    """How one kind of error looks over HTTP."""

    status: int
    kind: str
    code: str | None


TABLE: dict[type[GatewayError], Row] = {
    MissingCredentials: Row(401, INVALID, None),
    InvalidKey: Row(401, INVALID, "invalid_api_key"),
    ConflictingCredentials: Row(400, INVALID, None),
    TenantSuspended: Row(403, INVALID, "tenant_suspended"),
    AuthUnavailable: Row(503, UNAVAILABLE, "auth_unavailable"),
    ModelNotFound: Row(404, INVALID, "model_not_found"),
    UnknownUrl: Row(404, INVALID, "unknown_url"),
    MethodNotSupported: Row(405, INVALID, "method_not_supported"),
    BodyTooLarge: Row(413, INVALID, "request_too_large"),
    HeadersTooLarge: Row(431, INVALID, "headers_too_large"),
    BadHttp: Row(400, INVALID, None),
    RequestTimeout: Row(408, INVALID, "request_timeout"),
    LimitExceeded: Row(429, RATE_LIMIT, "rate_limit_exceeded"),
    QueueFull: Row(429, RATE_LIMIT, "queue_full"),
    QueueTimeout: Row(429, RATE_LIMIT, "queue_timeout"),
    PredictedWait: Row(429, RATE_LIMIT, "predicted_wait"),
    NoHealthyUpstream: Row(503, UNAVAILABLE, "no_healthy_upstream"),
    NoReplicaFits: Row(503, UNAVAILABLE, "no_replica_fits"),
    LogUnavailable: Row(503, UNAVAILABLE, "log_unavailable"),
    Overloaded: Row(503, UNAVAILABLE, "server_is_overloaded"),
    ShuttingDown: Row(503, UNAVAILABLE, "server_shutting_down"),
    UpstreamFailed: Row(502, SERVER, "upstream_error"),
    UpstreamTimeout: Row(504, SERVER, "upstream_timeout"),
}
INTERNAL = Row(500, SERVER, "internal_error")
RETRYABLE = frozenset({429, 503})
DEFAULT_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished error response: status, body and the headers that belong to it."""

    status: int
    body: bytes
    headers: Headers


def retry_headers(seconds: float) -> Headers:
    """`Retry-After` in whole seconds (at least 1) and `retry-after-ms`, which SDKs read first."""
    milliseconds = max(1, math.ceil(seconds * 1000))
    return [
        (b"retry-after", b"%d" % max(1, math.ceil(seconds))),
        (b"retry-after-ms", b"%d" % milliseconds),
    ]


def _row(error: GatewayError | InvalidRequest) -> Row:
    if isinstance(error, InvalidRequest):
        return Row(400, INVALID, error.code)
    return TABLE[type(error)]


def body_of(error: GatewayError | InvalidRequest) -> bytes:
    """The error object alone: what a stream that has begun sends as its last event."""
    row = _row(error)
    return orjson.dumps(error_object(error.message, row.kind, param=error.param, code=row.code))


def answer(error: GatewayError | InvalidRequest) -> Answer:
    """The whole response for a domain error."""
    row = _row(error)
    headers: Headers = [(b"content-type", b"application/json")]
    if row.status in RETRYABLE:
        headers += _retry(error)
    if row.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return Answer(row.status, body_of(error), headers)


def _retry(error: GatewayError | InvalidRequest) -> Headers:
    """When to come back; a limit smaller than the request itself never lets it through."""
    seconds = getattr(error, "retry_after_s", None)
    if seconds is None and isinstance(error, LimitExceeded):
        return [(b"x-should-retry", b"false")]
    return retry_headers(DEFAULT_RETRY_S if seconds is None else seconds)


def internal_body(request_id: str) -> bytes:
    """What a client learns of a fault of ours: that it happened, and what to quote."""
    message = f"The server had an error processing your request (request id {request_id})."
    return orjson.dumps(error_object(message, INTERNAL.kind, code=INTERNAL.code))
