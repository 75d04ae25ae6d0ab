"""The repositories in memory, for tests: the contract of `tenancy.sql`, by the same tests."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import UUID

from tenancy.entities import DEFAULT_PLAN_LIMITS, ApiKey, Plan, Tenant, UsageRow
from tenancy.errors import NotFoundError, SlugTakenError
from tenancy.repositories import Credential
from tenancy.usage import UsageGroup, UsageQuery, UsageTotal


@dataclass(slots=True)
class _State:
    tenants: dict[UUID, Tenant] = field(default_factory=dict)
    plans: dict[str, Plan] = field(
        default_factory=lambda: {"default": Plan("default", DEFAULT_PLAN_LIMITS)}
    )
    keys: dict[str, tuple[ApiKey, bytes]] = field(default_factory=dict)
    usage: dict[tuple[str, int], UsageRow] = field(default_factory=dict)
    revision: int = 0

    def copy(self) -> "_State":
        return _State(
            tenants=dict(self.tenants),
            plans=dict(self.plans),
            keys=dict(self.keys),
            usage=dict(self.usage),
            revision=self.revision,
        )

    def require_plan(self, name: str) -> None:
        if name not in self.plans:
            raise NotFoundError("plan", name)


@dataclass(frozen=True, slots=True)
class MemoryTenants:
    """Tenants in memory."""

    state: _State

    async def add(self, tenant: Tenant) -> None:
        """Insert."""
        self.state.revision += 1
        self.state.require_plan(tenant.plan)
        if await self.by_slug(tenant.slug) is not None:
            raise SlugTakenError(tenant.slug)
        self.state.tenants[tenant.id] = tenant

    async def update(self, tenant: Tenant) -> None:
        """Replace what may change."""
        self.state.revision += 1
        self.state.require_plan(tenant.plan)
        old = self.state.tenants.get(tenant.id)
        if old is None:
            raise NotFoundError("tenant", str(tenant.id))
        self.state.tenants[tenant.id] = replace(tenant, slug=old.slug, created_at=old.created_at)

    async def by_id(self, tenant_id: UUID) -> Tenant | None:
        """The tenant, if any."""
        return self.state.tenants.get(tenant_id)

    async def by_slug(self, slug: str) -> Tenant | None:
        """The tenant, if any."""
        return next((one for one in self.state.tenants.values() if one.slug == slug), None)

    async def all(self) -> tuple[Tenant, ...]:
        """Every tenant, oldest first."""
        return tuple(sorted(self.state.tenants.values(), key=lambda t: (t.created_at, t.slug)))


@dataclass(frozen=True, slots=True)
class MemoryPlans:
    """Plans in memory."""

    state: _State

    async def get(self, name: str) -> Plan | None:
        """The plan, if any."""
        return self.state.plans.get(name)


@dataclass(frozen=True, slots=True)
class MemoryApiKeys:
    """Keys in memory."""

    state: _State

    async def add(self, key: ApiKey, digest: bytes, pepper_version: int) -> None:
        """Insert the key beside the digest of its text."""
        del pepper_version  # nothing reads it back yet
        self.state.revision += 1
        if key.tenant_id not in self.state.tenants:
            raise NotFoundError("tenant", str(key.tenant_id))
        self.state.keys[key.id] = (key, digest)

    async def set_revoked(self, key_id: str, when: datetime) -> ApiKey:
        """Revoke once."""
        self.state.revision += 1
        key, digest = self._entry(key_id)
        if key.revoked_at is None:
            key = replace(key, revoked_at=when)
            self.state.keys[key_id] = (key, digest)
        return key

    async def update(self, key: ApiKey) -> None:
        """Replace name, expiry and limits; a revocation cannot be undone here."""
        self.state.revision += 1
        old, digest = self._entry(key.id)
        changed = replace(old, name=key.name, expires_at=key.expires_at, limits=key.limits)
        self.state.keys[key.id] = (changed, digest)

    async def get(self, key_id: str) -> ApiKey | None:
        """The key, if any."""
        entry = self.state.keys.get(key_id)
        return None if entry is None else entry[0]

    async def all(self, tenant_id: UUID | None = None) -> tuple[ApiKey, ...]:
        """Keys of one tenant or all, oldest first."""
        keys = (key for key, _ in self.state.keys.values())
        wanted = (key for key in keys if tenant_id is None or key.tenant_id == tenant_id)
        return tuple(sorted(wanted, key=lambda key: (key.created_at, key.id)))

    async def credential(self, key_id: str) -> Credential | None:
        """What authentication needs, as of one moment."""
        entry = self.state.keys.get(key_id)
        if entry is None:
            return None
        key, digest = entry
        tenant = self.state.tenants[key.tenant_id]
        return Credential(
            key=key,
            digest=digest,
            tenant=tenant,
            plan=self.state.plans[tenant.plan],
            revision=self.state.revision,
        )

    def _entry(self, key_id: str) -> tuple[ApiKey, bytes]:
        entry = self.state.keys.get(key_id)
        if entry is None:
            raise NotFoundError("key", key_id)
        return entry


@dataclass(frozen=True, slots=True)
class MemoryUsageLedger:
    """Usage rows in memory."""

    state: _State

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Add rows; the first of a (request_id, attempt) stays."""
        for row in rows:
            self.state.usage.setdefault((row.request_id, row.attempt), row)

    async def totals(self, query: UsageQuery) -> tuple[UsageTotal, ...]:
        """Sums by group, ordered by the groups."""
        groups: defaultdict[tuple[object, ...], list[UsageRow]] = defaultdict(list)
        if not query.group_by:
            groups[()] = []
        for row in self.state.usage.values():
            if _is_wanted(query, row):
                groups[tuple(_group(row, group) for group in query.group_by)].append(row)
        order = sorted(groups, key=lambda key: [str(part) for part in key])
        return tuple(_total(query.group_by, key, groups[key]) for key in order)


def _is_wanted(query: UsageQuery, row: UsageRow) -> bool:
    return (
        query.tenant_id in {None, row.tenant_id}
        and (query.start is None or query.start <= row.created_at)
        and (query.end is None or row.created_at < query.end)
    )


def _group(row: UsageRow, group: UsageGroup) -> object:
    values = {
        UsageGroup.TENANT: row.tenant_id,
        UsageGroup.KEY: row.key_id,
        UsageGroup.MODEL: row.model,
        UsageGroup.DAY: row.created_at.astimezone(UTC).date(),
    }
    return values[group]


def _total(
    group_by: tuple[UsageGroup, ...], key: tuple[object, ...], rows: list[UsageRow]
) -> UsageTotal:
    by = dict(zip(group_by, key, strict=True))
    return UsageTotal(
        tenant_id=by.get(UsageGroup.TENANT),  # type: ignore[arg-type] # `_group` gave each its type
        key_id=by.get(UsageGroup.KEY),  # type: ignore[arg-type] # as above
        model=by.get(UsageGroup.MODEL),  # type: ignore[arg-type] # as above
        day=by.get(UsageGroup.DAY),  # type: ignore[arg-type] # as above
        requests=len(rows),
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        cached_tokens=sum(row.cached_tokens or 0 for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        requests_cache_unknown=sum(row.cached_tokens is None for row in rows),
    )


@dataclass(frozen=True, slots=True)
class MemoryRepositories:
    """All repositories over one copy of the state."""

    state: _State

    @property
    def tenants(self) -> MemoryTenants:
        """Tenants."""
        return MemoryTenants(self.state)

    @property
    def plans(self) -> MemoryPlans:
        """Plans."""
        return MemoryPlans(self.state)

    @property
    def keys(self) -> MemoryApiKeys:
        """API keys."""
        return MemoryApiKeys(self.state)

    @property
    def usage(self) -> MemoryUsageLedger:
        """Usage rows."""
        return MemoryUsageLedger(self.state)

    async def revision(self) -> int:
        """How often the directory has been written."""
        return self.state.revision

    async def lock_directory(self) -> None:
        """Held since the transaction began."""


class MemoryDatabase:
    """The in-memory `Store`: a transaction works on a copy, which replaces the state on commit."""

    def __init__(self) -> None:
        self._state = _State()
        self._writer = asyncio.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryRepositories]:
        """Commits on a clean exit, else takes everything back."""
        async with self._writer:
            draft = self._state.copy()
            yield MemoryRepositories(draft)
            self._state = draft

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[MemoryRepositories]:
        """For reads only: what is written inside is not kept."""
        yield MemoryRepositories(self._state.copy())

    async def dispose(self) -> None:
        """Nothing is held."""
