"""The first tenant of a new deployment, made when `serve` finds none."""

from datetime import UTC, datetime

from tenancy import tenants
from tenancy.entities import Tenant
from tenancy.keyring import Keyring
from tenancy.repositories import Store


async def ensure_first_tenant(
    db: Store, keyring: Keyring, slug: str = "default"
) -> tuple[Tenant, str | None]:
    """The first tenant, and the text of its key only where both were made just now."""
    async with db.reading() as repos:
        existing = await repos.tenants.all()
    if not existing:
        async with db.transaction() as repos:
            await repos.lock_directory()
            existing = await repos.tenants.all()
            if not existing:
                now = datetime.now(UTC)
                tenant = await tenants.create(repos, slug, now=now)
                pepper = keyring.pepper
                _, text = await tenants.issue_key(repos, pepper, tenant, now=now, name="first")
                return tenant, text
    return next((tenant for tenant in existing if tenant.slug == slug), existing[0]), None
