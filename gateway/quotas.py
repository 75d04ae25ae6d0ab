"""What requests take together: all reservations of tenant and key, or none, settled once."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from fairness.reservation import Demand, Dimension, LimitBook, Refusal
from gateway.admission import Admitted
from gateway.errors import Headers, LimitExceeded, QueueFull
from tenancy.entities import EffectiveLimit, EffectiveLimits, TenantContext

LIMITS_CACHED: Final = 1_024
# The headers' names for our dimensions, in the order they are sent.
HEADER_NAMES: Final = {
    Dimension.RPM: b"requests",
    Dimension.TPM: b"tokens",
    Dimension.UNCACHED_TPM: b"uncached-tokens",
}
LIMIT_FIELDS: Final = {
    Dimension.RPM: "rpm",
    Dimension.TPM: "tpm",
    Dimension.UNCACHED_TPM: "uncached_tpm",
    Dimension.QUEUED: "max_queued",
}


class Quotas:
    """Reservations of this gateway, by tenant and by key."""

    def __init__(self, book: LimitBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock
        # What a snapshot limits never changes: worked out once per key and revision.
        self._limits = lru_cache(LIMITS_CACHED)(_limits)

    def reserve(self, request_id: str, context: TenantContext, admitted: Admitted) -> None:
        """Take a place and the worst case of every limit, or nothing. Raises LimitExceeded."""
        num_prompt = len(admitted.prepared.prompt)
        amounts = {
            Dimension.RPM: 1,
            Dimension.TPM: num_prompt + admitted.prepared.sampling.n * admitted.max_tokens,
            Dimension.UNCACHED_TPM: num_prompt,
            Dimension.QUEUED: 1,
        }
        demands = [
            Demand(subject, dimension, amounts[dimension], limit.value, limit.level)
            for subject, dimension, limit in self._limits(_Key(context))
        ]
        outcome = self._book.reserve(self._clock(), request_id, demands)
        if isinstance(outcome, Refusal):
            raise _limit_exceeded(outcome, context)

    def granted(self, request_id: str) -> None:
        """The request left its queue: its place is free."""
        self._book.leave_queue(request_id)

    def settle(self, request_id: str, *, prompt: int, cached: int, output: int) -> None:
        """Replace the worst case by what was used; once."""
        actual = {
            Dimension.RPM: 1,
            Dimension.TPM: prompt + output,
            Dimension.UNCACHED_TPM: prompt - cached,
        }
        self._book.settle(self._clock(), request_id, actual)

    def headers(self, context: TenantContext) -> Headers:
        """`x-ratelimit-*` for the dimensions that are limited; the tightest of tenant and key."""
        headers: Headers = []
        now = self._clock()
        for dimension, name in HEADER_NAMES.items():
            lefts = [
                self._book.left(now, subject, {dimension: limit.value})[dimension]
                for subject, limited, limit in self._limits(_Key(context))
                if limited is dimension
            ]
            if lefts:
                left = min(lefts, key=lambda one: one.remaining)
                headers += [
                    (b"x-ratelimit-limit-" + name, b"%d" % left.limit),
                    (b"x-ratelimit-remaining-" + name, b"%d" % left.remaining),
                    (b"x-ratelimit-reset-" + name, duration(left.reset_s)),
                ]
        return headers

    def left(self, tenant_id: str, limits: dict[Dimension, int]) -> dict[Dimension, int]:
        """What the tenant may still take of each of `limits`."""
        left = self._book.left(self._clock(), _tenant_subject(tenant_id), limits)
        return {dimension: one.remaining for dimension, one in left.items()}


def _tenant_subject(tenant_id: str) -> str:
    return f"tenant:{tenant_id}"


class _Key:
    """A context as a cache key: one key at one revision has one set of limits."""

    __slots__ = ("context", "identity")

    def __init__(self, context: TenantContext) -> None:
        self.context = context
        self.identity = (context.key_id, context.revision)

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.identity == other.identity


def _limits(cached_by: _Key) -> tuple[tuple[str, Dimension, EffectiveLimit], ...]:
    """Every counted limit with whose it is: a key's own counts for the key, beside its tenant's."""
    context = cached_by.context
    found = []
    tenant = _tenant_subject(str(context.tenant_id))
    key = f"key:{context.key_id}"
    for dimension, name in LIMIT_FIELDS.items():
        shared = _field(context.limits, name)
        if shared is not None:
            found.append((tenant, dimension, shared))
        own = _field(context.key_limits, name)
        if own is not None and own.level == "key":
            found.append((key, dimension, own))
    return tuple(found)


def _field(limits: EffectiveLimits, name: str) -> EffectiveLimit | None:
    value: EffectiveLimit | None = getattr(limits, name)
    return value


def _limit_exceeded(refusal: Refusal, context: TenantContext) -> LimitExceeded:
    name = LIMIT_FIELDS[refusal.dimension]
    whose = f"tenant {context.tenant_slug}"
    if refusal.level == "key":
        whose = f"key {context.key_id} of {whose}"
    queue = refusal.dimension is Dimension.QUEUED
    unit = " waiting requests" if queue else " per minute"
    message = (
        f"Limit reached for {whose}: {name} is {refusal.limit}{unit}, set by the {refusal.level};"
        f" {refusal.remaining} left."
    )
    kind = QueueFull if queue else LimitExceeded
    return kind(message, dimension=name, level=refusal.level, retry_after_s=refusal.retry_after_s)


def duration(seconds: float) -> bytes:
    """A Go-style duration, as OpenAI's reset headers have it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{text}s".encode() if minutes else f"{text}s".encode()
