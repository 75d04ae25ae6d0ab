"""Administering tenants, their keys and their limits: each function works inside a transaction."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from uuid import UUID, uuid4

from tenancy import api_keys
from tenancy.entities import ApiKey, Limits, Tenant, TenantStatus
from tenancy.errors import InvalidValueError, NotFoundError
from tenancy.keyring import Secret
from tenancy.quotas import checked
from tenancy.repositories import Repositories

DEFAULT_PLAN = "default"
DEFAULT_WEIGHT_MILLI = 1_000
MAX_WEIGHT_MILLI = 1_000_000
MAX_KEY_NAME = 64

_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def checked_slug(slug: str) -> str:
    """The slug: a DNS label, but no UUID: those name tenants too. Raises InvalidValueError."""
    if _SLUG.fullmatch(slug) is None:
        raise InvalidValueError(
            "slug", "must be 1 to 63 of a-z, 0-9 and -, with no - at either end"
        )
    if _uuid(slug) is not None:
        raise InvalidValueError("slug", "must not look like a UUID")
    return slug


def checked_weight(weight_milli: int) -> int:
    """The weight in thousandths. Raises InvalidValueError outside 0.001 to 1000."""
    if not 1 <= weight_milli <= MAX_WEIGHT_MILLI:
        raise InvalidValueError("weight", f"must be from 0.001 to {MAX_WEIGHT_MILLI // 1000}")
    return weight_milli


async def create(
    repos: Repositories,
    slug: str,
    *,
    now: datetime,
    weight_milli: int = DEFAULT_WEIGHT_MILLI,
    plan: str = DEFAULT_PLAN,
) -> Tenant:
    """A new tenant. Raises InvalidValueError, SlugTakenError, NotFoundError (plan)."""
    tenant = Tenant(
        id=uuid4(),
        slug=checked_slug(slug),
        weight_milli=checked_weight(weight_milli),
        plan=plan,
        status=TenantStatus.ACTIVE,
        generation=1,
        limits=Limits(),
        created_at=now,
    )
    await repos.tenants.add(tenant)
    return tenant


async def find(repos: Repositories, name: str) -> Tenant:
    """The tenant with this slug or UUID. Raises NotFoundError."""
    tenant_id = _uuid(name)
    tenant = await (
        repos.tenants.by_slug(name) if tenant_id is None else repos.tenants.by_id(tenant_id)
    )
    if tenant is None:
        raise NotFoundError("tenant", name)
    return tenant


async def change(
    repos: Repositories, name: str, *, weight_milli: int | None = None, plan: str | None = None
) -> Tenant:
    """Set what is given. Raises InvalidValueError, NotFoundError (tenant, plan)."""
    await repos.lock_directory()
    tenant = await find(repos, name)
    if weight_milli is not None:
        tenant = replace(tenant, weight_milli=checked_weight(weight_milli))
    if plan is not None:
        tenant = replace(tenant, plan=plan)
    await repos.tenants.update(tenant)
    return tenant


async def set_status(repos: Repositories, name: str, status: TenantStatus) -> Tenant:
    """Suspend or resume. Raises NotFoundError."""
    await repos.lock_directory()
    tenant = replace(await find(repos, name), status=status)
    await repos.tenants.update(tenant)
    return tenant


async def change_limits(
    repos: Repositories, name: str, changes: Mapping[str, int | None], key_id: str | None = None
) -> tuple[Tenant, ApiKey | None]:
    """Set the named limits of a tenant or of one of its keys; None clears one.

    Concurrency is the tenant's alone: it is a term of the tenant's fairness bound, and nothing
    would enforce it for a key. Raises InvalidValueError, NotFoundError (tenant, key).
    """
    await repos.lock_directory()
    tenant = await find(repos, name)
    if key_id is None:
        tenant = replace(tenant, limits=checked(replace(tenant.limits, **changes)))
        await repos.tenants.update(tenant)
        return tenant, None
    if changes.get("concurrency") is not None:
        raise InvalidValueError("concurrency", "is set for a whole tenant, not for one key")
    key = await find_key(repos, tenant, key_id)
    key = replace(key, limits=checked(replace(key.limits, **changes)))
    await repos.keys.update(key)
    return tenant, key


async def issue_key(
    repos: Repositories,
    pepper: Secret,
    tenant: Tenant,
    *,
    now: datetime,
    name: str = "",
    expires_at: datetime | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its text, shown this once. Raises InvalidValueError, NotFoundError."""
    if len(name) > MAX_KEY_NAME or (name and not name.isprintable()):
        raise InvalidValueError("name", f"must be at most {MAX_KEY_NAME} printable characters")
    if expires_at is not None and expires_at <= now:
        raise InvalidValueError("expires", "must be in the future")
    key, text = api_keys.mint(tenant.id, now=now, name=name, expires_at=expires_at)
    await repos.keys.add(key, api_keys.digest(pepper.value, text), pepper.version)
    return key, text


async def find_key(repos: Repositories, tenant: Tenant, key_id: str) -> ApiKey:
    """The tenant's key. Raises NotFoundError, also for a key of another tenant."""
    key = await repos.keys.get(key_id)
    if key is None or key.tenant_id != tenant.id:
        raise NotFoundError("key", key_id)
    return key
