"""The tables, portable between SQLite and PostgreSQL; seen only by tenancy and migrations."""

from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    TypeDecorator,
    Uuid,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tenancy.entities import ApiKey, Limits, Plan, Tenant, TenantStatus
from tenancy.quotas import LIMIT_NAMES

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware moment, kept in UTC; SQLite has no zones, so there it is stored without one."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a naive moment: nobody could say when it is."""
        del dialect
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment needs a time zone")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Always in UTC."""
        del dialect
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Holds the metadata that migrations must lead to."""

    metadata = MetaData(naming_convention=NAMING)


class LimitColumns:
    """One nullable column per limit: null is no limit at this level."""

    rpm: Mapped[int | None] = mapped_column(BigInteger)
    tpm: Mapped[int | None] = mapped_column(BigInteger)
    uncached_tpm: Mapped[int | None] = mapped_column(BigInteger)
    concurrency: Mapped[int | None] = mapped_column(BigInteger)
    max_queued: Mapped[int | None] = mapped_column(BigInteger)
    max_prompt: Mapped[int | None] = mapped_column(BigInteger)
    max_output: Mapped[int | None] = mapped_column(BigInteger)

    def limits(self) -> Limits:
        """The limits of this row."""
        return Limits(**{name: getattr(self, name) for name in LIMIT_NAMES})


class PlanRow(LimitColumns, Base):
    """A plan; what bounds scheduling is never null."""

    __tablename__ = "plans"
    __table_args__ = (
        CheckConstraint(
            "concurrency IS NOT NULL AND max_queued IS NOT NULL"
            " AND max_prompt IS NOT NULL AND max_output IS NOT NULL",
            name="bounded",
        ),
    )

    name: Mapped[str] = mapped_column(String(63), primary_key=True)

    def entity(self) -> Plan:
        """The row as a value."""
        return Plan(name=self.name, limits=self.limits())


class TenantRow(LimitColumns, Base):
    """A tenant."""

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("weight_milli > 0", name="weight_positive"),
        CheckConstraint("status IN ('active', 'suspended')", name="status_known"),
    )

    id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    slug: Mapped[str] = mapped_column(String(63), unique=True)
    weight_milli: Mapped[int] = mapped_column(Integer)
    plan: Mapped[str] = mapped_column(ForeignKey("plans.name"))
    status: Mapped[str] = mapped_column(String(16))
    generation: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    def entity(self) -> Tenant:
        """The row as a value."""
        return Tenant(
            id=self.id,
            slug=self.slug,
            weight_milli=self.weight_milli,
            plan=self.plan,
            status=TenantStatus(self.status),
            generation=self.generation,
            limits=self.limits(),
            created_at=self.created_at,
        )


class ApiKeyRow(LimitColumns, Base):
    """A key: the digest of its text, never the text."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(10), primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(64))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    pepper_version: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    def entity(self) -> ApiKey:
        """The row as a value."""
        return ApiKey(
            id=self.id,
            tenant_id=self.tenant_id,
            name=self.name,
            created_at=self.created_at,
            expires_at=self.expires_at,
            revoked_at=self.revoked_at,
            limits=self.limits(),
        )


class UsageRecordRow(Base):
    """What one attempt of a request used. No foreign keys: usage outlives keys and tenants."""

    __tablename__ = "usage"
    __table_args__ = (Index(None, "tenant_id", "created_at"),)

    request_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    tenant_id: Mapped[UUID] = mapped_column(Uuid)
    key_id: Mapped[str] = mapped_column(String(10))
    model: Mapped[str] = mapped_column(String(255))
    route: Mapped[str] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(16))
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int | None] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    queue_s: Mapped[float] = mapped_column(Double)
    duration_s: Mapped[float] = mapped_column(Double)


class RevisionRow(Base):
    """One row that counts the directory's writes; gateways poll it."""

    __tablename__ = "directory_revision"
    __table_args__ = (CheckConstraint("id = 1", name="single_row"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    value: Mapped[int] = mapped_column(BigInteger)
