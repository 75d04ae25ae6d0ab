"""Tenants, keys and limits as immutable values; ORM rows never leave this package."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class TenantStatus(StrEnum):
    """A suspended tenant's keys authenticate, then are refused with a reason."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


class KeyStatus(StrEnum):
    """Where a key stands at a moment; revocation wins over expiry."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits set at one level; None means this level sets none."""

    rpm: int | None = None
    tpm: int | None = None
    uncached_tpm: int | None = None
    concurrency: int | None = None
    max_queued: int | None = None
    max_prompt: int | None = None
    max_output: int | None = None


DEFAULT_PLAN_LIMITS = Limits(
    rpm=600,
    tpm=200_000,
    uncached_tpm=None,
    concurrency=4,
    max_queued=64,
    max_prompt=2_048,
    max_output=512,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """A named set of limits; its scheduling limits are always set, else no bound would hold."""

    name: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """The value of one limit in force, and the level that set it (`plan`, `tenant` or `key`)."""

    value: int
    level: str


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """The limit in force per dimension, see `tenancy.quotas.effective`; None is unlimited."""

    rpm: EffectiveLimit | None
    tpm: EffectiveLimit | None
    uncached_tpm: EffectiveLimit | None
    concurrency: EffectiveLimit
    max_queued: EffectiveLimit
    max_prompt: EffectiveLimit
    max_output: EffectiveLimit


@dataclass(frozen=True, slots=True)
class Tenant:
    """A paying customer. The UUID is its identity for ever; the slug is only a name."""

    id: UUID
    slug: str
    weight_milli: int
    plan: str
    status: TenantStatus
    generation: int
    limits: Limits
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key without its secret. `id` is the public part shown in listings and logs."""

    id: str
    tenant_id: UUID
    name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    limits: Limits

    def status(self, now: datetime) -> KeyStatus:
        """Whether the key may be used at `now`."""
        if self.revoked_at is not None:
            return KeyStatus.REVOKED
        if self.expires_at is not None and self.expires_at <= now:
            return KeyStatus.EXPIRED
        return KeyStatus.ACTIVE


@dataclass(frozen=True, slots=True)
class TenantContext:
    """Who is calling, from the authenticated key alone: an immutable snapshot at `revision`.

    `limits` are what plan and tenant set, shared by all keys of the tenant. `key_limits` also
    takes in the key's own: a dimension whose level there is `key` is counted for this key as well.
    """

    tenant_id: UUID
    tenant_slug: str
    tenant_status: TenantStatus
    generation: int
    weight_milli: int
    key_id: str
    key_expires_at: datetime | None
    limits: EffectiveLimits
    key_limits: EffectiveLimits
    revision: int


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one request used, written once per (request_id, attempt).

    `cached_tokens` is None when the upstream did not say. `outcome` is one of stop, length,
    cancelled, timeout, error, expired.
    """

    request_id: str
    attempt: int
    tenant_id: UUID
    key_id: str
    model: str
    route: str
    outcome: str
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    created_at: datetime
    queue_s: float
    duration_s: float
