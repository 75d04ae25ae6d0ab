"""The ports to the tenancy database; `tenancy.sql` is the real one, `tenancy.memory` its twin.

A transaction yields `Repositories`. Every write of the directory (tenants, plans, keys) raises the
revision in the same transaction, and does so first: the directory's writes are thereby in one
order, and what a write checked still holds when it commits.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from tenancy.entities import ApiKey, Plan, Tenant, UsageRow
from tenancy.usage import UsageQuery, UsageTotal


@dataclass(frozen=True, slots=True)
class Credential:
    """A key with its digest, tenant and plan, all read at one `revision`."""

    key: ApiKey
    digest: bytes = field(repr=False)
    tenant: Tenant
    plan: Plan
    revision: int


class Tenants(Protocol):
    """Tenants by identity and by slug."""

    async def add(self, tenant: Tenant) -> None:
        """Raises SlugTakenError, NotFoundError for an unknown plan."""

    async def update(self, tenant: Tenant) -> None:
        """Replace what may change. Raises NotFoundError (tenant, plan)."""

    async def by_id(self, tenant_id: UUID) -> Tenant | None:
        """The tenant, if any."""

    async def by_slug(self, slug: str) -> Tenant | None:
        """The tenant, if any."""

    async def all(self) -> tuple[Tenant, ...]:
        """Every tenant, oldest first."""


class Plans(Protocol):
    """Named plans; the one called `default` is always there."""

    async def get(self, name: str) -> Plan | None:
        """The plan, if any."""


class ApiKeys(Protocol):
    """Keys with the digests of their texts."""

    async def add(self, key: ApiKey, digest: bytes, pepper_version: int) -> None:
        """Raises NotFoundError for an unknown tenant."""

    async def set_revoked(self, key_id: str, when: datetime) -> ApiKey:
        """Revoke once: a key already revoked keeps its time. Raises NotFoundError."""

    async def update(self, key: ApiKey) -> None:
        """Replace name, expiry and limits. Raises NotFoundError."""

    async def get(self, key_id: str) -> ApiKey | None:
        """The key, if any."""

    async def all(self, tenant_id: UUID | None = None) -> tuple[ApiKey, ...]:
        """Keys of one tenant or all, oldest first."""

    async def credential(self, key_id: str) -> Credential | None:
        """What authentication needs, as of one moment."""


class UsageLedger(Protocol):
    """Usage rows; not part of the directory, so they do not raise the revision."""

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Add rows; a (request_id, attempt) already there keeps its first row."""

    async def totals(self, query: UsageQuery) -> tuple[UsageTotal, ...]:
        """Sums by group, ordered by the groups."""


class Repositories(Protocol):
    """All repositories of one transaction."""

    @property
    def tenants(self) -> Tenants:
        """Tenants."""

    @property
    def plans(self) -> Plans:
        """Plans."""

    @property
    def keys(self) -> ApiKeys:
        """API keys."""

    @property
    def usage(self) -> UsageLedger:
        """Usage rows."""

    async def revision(self) -> int:
        """How often the directory has been written."""

    async def lock_directory(self) -> None:
        """Keep other writers of the directory out until the end of this transaction.

        To be called before reading what is to be changed.
        """


class Store(Protocol):
    """Opens transactions. Raises StoreUnavailableError, SchemaMissingError from inside them."""

    def transaction(self) -> AbstractAsyncContextManager[Repositories]:
        """Commits on a clean exit, else takes everything back."""

    def reading(self) -> AbstractAsyncContextManager[Repositories]:
        """For reads only: what is written inside is not kept."""
