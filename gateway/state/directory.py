"""The tenancy database as the gateway reads and writes it: keys, limits and usage rows.

Off the hot path: a key is read once per revision, usage is written in batches.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

from gateway.auth import StoreDown
from tenancy import directory
from tenancy.entities import EffectiveLimits, TenantContext, UsageRow
from tenancy.errors import SchemaMissingError, StoreUnavailableError
from tenancy.quotas import effective
from tenancy.repositories import Repositories, Store


class Directory:
    """Implements `gateway.auth.KeyStore` over a tenancy `Store`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def revision(self) -> int:
        """See `KeyStore`."""
        async with self._reading() as repos:
            return await directory.revision(repos)

    async def load(self, key_id: str, digest: bytes) -> TenantContext | None:
        """See `KeyStore`."""
        async with self._reading() as repos:
            found = await directory.load_context(repos, key_id, digest, datetime.now(UTC))
        return found if isinstance(found, TenantContext) else None

    async def slugs(self, tenant_ids: Iterable[UUID]) -> dict[UUID, str]:
        """What those tenants are called, of those that exist. Raises StoreDown."""
        async with self._reading() as repos:
            found = [await repos.tenants.by_id(tenant_id) for tenant_id in tenant_ids]
        return {tenant.id: tenant.slug for tenant in found if tenant is not None}

    async def limits(self, tenant_id: UUID) -> EffectiveLimits | None:
        """A tenant's own limits, plan and tenant levels; None if there is no such tenant."""
        async with self._reading() as repos:
            tenant = await repos.tenants.by_id(tenant_id)
            plan = None if tenant is None else await repos.plans.get(tenant.plan)
        if tenant is None or plan is None:
            return None
        return effective(plan.limits, tenant.limits)

    async def insert_usage(self, rows: Sequence[UsageRow]) -> None:
        """Insert rows; a repeated one keeps its first copy. Raises TenancyError."""
        async with self._store.transaction() as repos:
            await repos.usage.insert(rows)

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Repositories]:
        try:
            async with self._store.reading() as repos:
                yield repos
        except (StoreUnavailableError, SchemaMissingError) as error:
            raise StoreDown from error
