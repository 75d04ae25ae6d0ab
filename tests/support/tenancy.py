"""Ready-made values of the tenancy package for tests."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from tenancy import tenants
from tenancy.entities import ApiKey, Tenant, UsageRow
from tenancy.keyring import Secret
from tenancy.repositories import Store

NOW = datetime(2026, 11, 15, 12, 30, 15, 123_456, tzinfo=UTC)
PEPPER = Secret(version=1, value=bytes(range(32)))


async def add_tenant(store: Store, slug: str = "acme", **options) -> Tenant:
    """A tenant, committed."""
    async with store.transaction() as repos:
        return await tenants.create(repos, slug, now=options.pop("now", NOW), **options)


async def add_key(store: Store, tenant: Tenant, **options) -> tuple[ApiKey, str]:
    """A key and its text, committed."""
    async with store.transaction() as repos:
        return await tenants.issue_key(
            repos, PEPPER, tenant, now=options.pop("now", NOW), **options
        )


def usage_row(**changes) -> UsageRow:
    """A usage row of a made-up request."""
    values = {
        "request_id": uuid4().hex,
        "attempt": 1,
        "tenant_id": UUID(int=1),
        "key_id": "KEY0000001",
        "model": "smollm2-135m",
        "route": "/v1/chat/completions",
        "outcome": "stop",
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 5,
        "created_at": NOW,
        "queue_s": 0.125,
        "duration_s": 1.5,
    }
    return UsageRow(**values | changes)
