"""What the migrations lead to is exactly what the ORM says, on both databases, and back."""

from dataclasses import asdict

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import main as alembic
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Column, Integer, inspect, text

from migrations.runner import alembic_config, upgrade_async
from tenancy.db import make_engine, parse_url
from tenancy.entities import DEFAULT_PLAN_LIMITS
from tenancy.orm import Base


async def run_sync(url, work):
    engine = make_engine(parse_url(url))
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def differences(connection):
    context = MigrationContext.configure(connection, opts={"compare_server_default": True})
    return compare_metadata(context, Base.metadata)


def named_constraints(connection):
    """What autogenerate does not compare: names of checks and primary keys, and nullability."""
    inspector = inspect(connection)
    found = {}
    for table in Base.metadata.tables:
        checks = {check["name"] for check in inspector.get_check_constraints(table)}
        primary = inspector.get_pk_constraint(table)
        foreign = {key["name"] for key in inspector.get_foreign_keys(table)}
        columns = {column["name"]: column["nullable"] for column in inspector.get_columns(table)}
        found[table] = (
            checks,
            primary["name"],
            primary["constrained_columns"],
            foreign,
            columns,
        )
    return found


def declared_constraints():
    return {
        name: (
            {c.name for c in table.constraints if isinstance(c, CheckConstraint)},
            table.primary_key.name,
            [column.name for column in table.primary_key.columns],
            {c.name for c in table.foreign_key_constraints},
            {column.name: column.nullable for column in table.columns},
        )
        for name, table in Base.metadata.tables.items()
    }


async def test_migrations_and_orm_agree(url):
    await upgrade_async(url)
    assert await run_sync(url, differences) == []
    assert await run_sync(url, named_constraints) == declared_constraints()


async def test_the_comparison_would_see_a_difference(url):
    await upgrade_async(url)

    def changed(connection):
        connection.execute(text("ALTER TABLE usage ADD COLUMN extra INTEGER"))
        connection.execute(text("DROP INDEX ix_usage_tenant_id_created_at"))
        found = differences(connection)
        connection.rollback()
        return found

    kinds = {difference[0] for difference in await run_sync(url, changed)}
    assert kinds == {"add_index", "remove_column"}


async def test_the_seed_is_the_default_plan(url):
    await upgrade_async(url)

    def rows(connection):
        plans = connection.execute(text("SELECT * FROM plans")).mappings().all()
        revision = connection.execute(text("SELECT id, value FROM directory_revision")).all()
        return [dict(plan) for plan in plans], [tuple(row) for row in revision]

    plans, revision = await run_sync(url, rows)
    assert plans == [{"name": "default", **asdict(DEFAULT_PLAN_LIMITS)}]
    assert revision == [(1, 0)]


async def test_down_and_up_again(url):
    await upgrade_async(url)

    def down(connection):
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        return set(inspect(connection).get_table_names())

    assert await run_sync(url, down) == {"alembic_version"}
    await upgrade_async(url)
    assert await run_sync(url, differences) == []


@pytest.fixture
def extra_column():
    table = Base.metadata.tables["plans"]
    table.append_column(Column("surprise", Integer))
    yield
    table._columns.remove(table.columns["surprise"])


@pytest.mark.usefixtures("extra_column")
async def test_an_orm_ahead_of_the_migrations_is_seen(url):
    await upgrade_async(url)
    assert [difference[0] for difference in await run_sync(url, differences)] == ["add_column"]


def alembic_check(tmp_path):
    url = f"sqlite:///{tmp_path / 'dev.db'}"
    options = ["-c", "migrations/alembic.ini", "-x", f"url={url}"]
    alembic([*options, "upgrade", "head"])
    alembic([*options, "check"])


def test_a_developers_alembic_command_finds_nothing_to_do(tmp_path):
    alembic_check(tmp_path)


@pytest.mark.usefixtures("extra_column")
def test_a_developers_alembic_command_finds_what_is_to_do(tmp_path):
    with pytest.raises(SystemExit):
        alembic_check(tmp_path)
