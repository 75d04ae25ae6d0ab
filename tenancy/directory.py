"""Who a presented key belongs to: the authority behind the gateway's cache of contexts."""

import hmac
from datetime import datetime
from enum import StrEnum

from tenancy.entities import KeyStatus, TenantContext
from tenancy.quotas import effective
from tenancy.repositories import Credential, Repositories

_NO_DIGEST = bytes(32)


class Refusal(StrEnum):
    """Why a well-formed key was not accepted; for metrics only, the client sees one 401 for all."""

    UNKNOWN = "unknown"
    MISMATCH = "mismatch"
    REVOKED = "revoked"
    EXPIRED = "expired"


async def load_context(
    session: Repositories, key_id: str, presented_digest: bytes, now: datetime
) -> TenantContext | Refusal:
    """The caller's context as of now, or why there is none.

    The caller digests the presented key before it asks, whether or not the id exists, and an
    unknown id is compared as well: an answer takes the same work for a wrong key as for none.
    A suspended tenant's keys do authenticate; its status is in the context.
    """
    credential = await session.keys.credential(key_id)
    stored = _NO_DIGEST if credential is None else credential.digest
    is_match = hmac.compare_digest(stored, presented_digest)
    if credential is None:
        return Refusal.UNKNOWN
    if not is_match:
        return Refusal.MISMATCH
    match credential.key.status(now):
        case KeyStatus.REVOKED:
            return Refusal.REVOKED
        case KeyStatus.EXPIRED:
            return Refusal.EXPIRED
        case KeyStatus.ACTIVE:
            return context_of(credential)


def context_of(credential: Credential) -> TenantContext:
    """The context that a key gives its bearer."""
    key, tenant, plan = credential.key, credential.tenant, credential.plan
    return TenantContext(
        tenant_id=tenant.id,
        tenant_slug=tenant.slug,
        tenant_status=tenant.status,
        generation=tenant.generation,
        weight_milli=tenant.weight_milli,
        key_id=key.id,
        key_expires_at=key.expires_at,
        limits=effective(plan.limits, tenant.limits),
        key_limits=effective(plan.limits, tenant.limits, key.limits),
        revision=credential.revision,
    )


async def revision(session: Repositories) -> int:
    """Rises with every administrative write; a context of an older revision must be loaded anew."""
    return await session.revision()
