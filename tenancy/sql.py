"""The repositories over SQLAlchemy, on SQLite and PostgreSQL alike; rows become values here."""

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Select, String, case, func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from tenancy.entities import ApiKey, Plan, Tenant, UsageRow
from tenancy.errors import NotFoundError, SlugTakenError
from tenancy.orm import ApiKeyRow, PlanRow, RevisionRow, TenantRow, UsageRecordRow
from tenancy.repositories import Credential
from tenancy.usage import UsageGroup, UsageQuery, UsageTotal

_REVISION = select(RevisionRow.value).scalar_subquery()


class utc_day(FunctionElement[str]):  # noqa: N801 - SQL functions are lower case
    """The UTC day of a moment as YYYY-MM-DD."""

    type = String()
    inherit_cache = True
    name = "utc_day"


@compiles(utc_day, "sqlite")
def _utc_day_sqlite(element: utc_day, compiler: SQLCompiler, **kw: Any) -> str:
    return f"date({compiler.process(element.clauses, **kw)})"


@compiles(utc_day, "postgresql")
def _utc_day_postgresql(element: utc_day, compiler: SQLCompiler, **kw: Any) -> str:
    return f"to_char({compiler.process(element.clauses, **kw)} AT TIME ZONE 'UTC', 'YYYY-MM-DD')"


async def _raise_revision(session: AsyncSession) -> None:
    """Count one write. On PostgreSQL the row's lock also keeps other writers out until the end."""
    await session.execute(update(RevisionRow).values(value=RevisionRow.value + 1))


def _values(row: UsageRow) -> dict[str, Any]:
    """A row's columns. `asdict` copies every value deeply, and there is a row per request."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


async def _require_plan(session: AsyncSession, name: str) -> None:
    if await session.get(PlanRow, name) is None:
        raise NotFoundError("plan", name)


@dataclass(frozen=True, slots=True)
class SqlTenants:
    """Tenants in the database."""

    session: AsyncSession

    async def add(self, tenant: Tenant) -> None:
        """Insert, with slug and plan checked under the writers' lock."""
        await _raise_revision(self.session)
        await _require_plan(self.session, tenant.plan)
        if await self.by_slug(tenant.slug) is not None:
            raise SlugTakenError(tenant.slug)
        values = asdict(tenant)
        await self.session.execute(insert(TenantRow).values(**values.pop("limits"), **values))

    async def update(self, tenant: Tenant) -> None:
        """Replace what may change; identity, slug and creation stay."""
        await _raise_revision(self.session)
        await _require_plan(self.session, tenant.plan)
        found = await self.session.scalar(
            update(TenantRow)
            .where(TenantRow.id == tenant.id)
            .values(
                weight_milli=tenant.weight_milli,
                plan=tenant.plan,
                status=tenant.status,
                generation=tenant.generation,
                **asdict(tenant.limits),
            )
            .returning(TenantRow.id)
        )
        if found is None:
            raise NotFoundError("tenant", str(tenant.id))

    async def by_id(self, tenant_id: UUID) -> Tenant | None:
        """The tenant, if any."""
        return await self._one(select(TenantRow).where(TenantRow.id == tenant_id))

    async def by_slug(self, slug: str) -> Tenant | None:
        """The tenant, if any."""
        return await self._one(select(TenantRow).where(TenantRow.slug == slug))

    async def all(self) -> tuple[Tenant, ...]:
        """Every tenant, oldest first."""
        rows = await self.session.scalars(
            select(TenantRow)
            .order_by(TenantRow.created_at, TenantRow.slug)
            .execution_options(populate_existing=True)
        )
        return tuple(row.entity() for row in rows)

    async def _one(self, query: Select[TenantRow]) -> Tenant | None:
        row = await self.session.scalar(query.execution_options(populate_existing=True))
        return None if row is None else row.entity()


@dataclass(frozen=True, slots=True)
class SqlPlans:
    """Plans in the database."""

    session: AsyncSession

    async def get(self, name: str) -> Plan | None:
        """The plan, if any."""
        row = await self.session.get(PlanRow, name)
        return None if row is None else row.entity()


@dataclass(frozen=True, slots=True)
class SqlApiKeys:
    """Keys in the database."""

    session: AsyncSession

    async def add(self, key: ApiKey, digest: bytes, pepper_version: int) -> None:
        """Insert the key beside the digest of its text."""
        await _raise_revision(self.session)
        if await self.session.get(TenantRow, key.tenant_id) is None:
            raise NotFoundError("tenant", str(key.tenant_id))
        values = asdict(key)
        await self.session.execute(
            insert(ApiKeyRow).values(
                **values.pop("limits"), **values, digest=digest, pepper_version=pepper_version
            )
        )

    async def set_revoked(self, key_id: str, when: datetime) -> ApiKey:
        """Revoke once."""
        await _raise_revision(self.session)
        await self.session.execute(
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
            .values(revoked_at=when)
        )
        key = await self.get(key_id)
        if key is None:
            raise NotFoundError("key", key_id)
        return key

    async def update(self, key: ApiKey) -> None:
        """Replace name, expiry and limits; a revocation cannot be undone here."""
        await _raise_revision(self.session)
        found = await self.session.scalar(
            update(ApiKeyRow)
            .where(ApiKeyRow.id == key.id)
            .values(name=key.name, expires_at=key.expires_at, **asdict(key.limits))
            .returning(ApiKeyRow.id)
        )
        if found is None:
            raise NotFoundError("key", key.id)

    async def get(self, key_id: str) -> ApiKey | None:
        """The key, if any."""
        row = await self.session.scalar(
            select(ApiKeyRow)
            .where(ApiKeyRow.id == key_id)
            .execution_options(populate_existing=True)
        )
        return None if row is None else row.entity()

    async def all(self, tenant_id: UUID | None = None) -> tuple[ApiKey, ...]:
        """Keys of one tenant or all, oldest first."""
        query = select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.id)
        if tenant_id is not None:
            query = query.where(ApiKeyRow.tenant_id == tenant_id)
        rows = await self.session.scalars(query.execution_options(populate_existing=True))
        return tuple(row.entity() for row in rows)

    async def credential(self, key_id: str) -> Credential | None:
        """One statement, so that key, tenant, plan and revision belong to the same moment."""
        query = (
            select(ApiKeyRow, TenantRow, PlanRow, _REVISION)
            .join(TenantRow, TenantRow.id == ApiKeyRow.tenant_id)
            .join(PlanRow, PlanRow.name == TenantRow.plan)
            .where(ApiKeyRow.id == key_id)
            .execution_options(populate_existing=True)
        )
        found = (await self.session.execute(query)).one_or_none()
        if found is None:
            return None
        key, tenant, plan, revision = found
        return Credential(
            key=key.entity(),
            digest=key.digest,
            tenant=tenant.entity(),
            plan=plan.entity(),
            revision=revision,
        )


@dataclass(frozen=True, slots=True)
class SqlUsageLedger:
    """Usage rows in the database."""

    session: AsyncSession

    async def insert(self, rows: Sequence[UsageRow]) -> None:
        """Insert in one batch; the primary key decides what is there already."""
        if not rows:
            return
        connection = await self.session.connection()
        # The dialect is the one that is connected: it is loaded, and the others need not be.
        dialect = importlib.import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
        statement = dialect.insert(UsageRecordRow.__table__).on_conflict_do_nothing(
            index_elements=["request_id", "attempt"]
        )
        await connection.execute(statement, [_values(row) for row in rows])

    async def totals(self, query: UsageQuery) -> tuple[UsageTotal, ...]:
        """Sums by group, ordered by the groups."""
        row = UsageRecordRow
        columns: dict[UsageGroup, ColumnElement[Any]] = {
            UsageGroup.TENANT: row.tenant_id.expression,
            UsageGroup.KEY: row.key_id.expression,
            UsageGroup.MODEL: row.model.expression,
            UsageGroup.DAY: utc_day(row.created_at),
        }
        groups = [columns[group].label(f"by_{group}") for group in query.group_by]
        statement = select(
            *groups,
            func.count().label("requests"),
            func.coalesce(func.sum(row.prompt_tokens), 0).label("prompt_tokens"),
            func.coalesce(func.sum(row.cached_tokens), 0).label("cached_tokens"),
            func.coalesce(func.sum(row.output_tokens), 0).label("output_tokens"),
            func.coalesce(
                func.sum(case((row.cached_tokens.is_(None), literal(1)), else_=literal(0))), 0
            ).label("requests_cache_unknown"),
        ).where(*_filters(query))
        if groups:
            statement = statement.group_by(*groups).order_by(*groups)
        found = await self.session.execute(statement)
        return tuple(_total(mapping) for mapping in found.mappings())


def _filters(query: UsageQuery) -> list[ColumnElement[bool]]:
    filters: list[ColumnElement[bool]] = []
    if query.tenant_id is not None:
        filters.append(UsageRecordRow.tenant_id == query.tenant_id)
    if query.start is not None:
        filters.append(UsageRecordRow.created_at >= query.start)
    if query.end is not None:
        filters.append(UsageRecordRow.created_at < query.end)
    return filters


def _total(mapping: Any) -> UsageTotal:
    day = mapping.get("by_day")
    return UsageTotal(
        tenant_id=mapping.get("by_tenant"),
        key_id=mapping.get("by_key"),
        model=mapping.get("by_model"),
        day=None if day is None else date.fromisoformat(day),
        requests=mapping["requests"],
        prompt_tokens=int(mapping["prompt_tokens"]),
        cached_tokens=int(mapping["cached_tokens"]),
        output_tokens=int(mapping["output_tokens"]),
        requests_cache_unknown=int(mapping["requests_cache_unknown"]),
    )


@dataclass(frozen=True, slots=True)
class SqlRepositories:
    """All repositories over one session."""

    session: AsyncSession

    @property
    def tenants(self) -> SqlTenants:
        """Tenants."""
        return SqlTenants(self.session)

    @property
    def plans(self) -> SqlPlans:
        """Plans."""
        return SqlPlans(self.session)

    @property
    def keys(self) -> SqlApiKeys:
        """API keys."""
        return SqlApiKeys(self.session)

    @property
    def usage(self) -> SqlUsageLedger:
        """Usage rows."""
        return SqlUsageLedger(self.session)

    async def revision(self) -> int:
        """How often the directory has been written."""
        return (await self.session.execute(select(RevisionRow.value))).scalar_one()

    async def lock_directory(self) -> None:
        """SQLite's writers hold the lock since they began; PostgreSQL locks the counter's row."""
        await self.session.execute(select(RevisionRow.value).with_for_update())
