"""The three stores: in memory, SQLite, and a real PostgreSQL."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from migrations import runner
from tenancy.db import Database
from tenancy.memory import MemoryDatabase
from tenancy.repositories import Store
from tests.support.postgres import Postgres, running_postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file, to be copied."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    runner.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_url(postgres: Postgres) -> str:
    """One migrated database, emptied before each test."""
    url = asyncio.run(postgres.create_database())
    runner.upgrade(url)
    return url


async def _emptied(database: Database) -> Database:
    async with database.transaction() as repos:
        await repos.session.execute(text("TRUNCATE tenants, api_keys, usage"))
        await repos.session.execute(text("UPDATE directory_revision SET value = 0"))
    return database


@pytest.fixture
def fresh(
    tmp_path: Path, sqlite_template: Path, postgres_url: str
) -> Callable[[str], Awaitable[Database]]:
    """Opens a database of the named kind, migrated and empty."""

    async def opening(kind: str) -> Database:
        if kind == "postgresql":
            return await _emptied(Database(postgres_url))
        return Database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'test.db')}")

    return opening


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, fresh) -> AsyncIterator[Database]:
    """A migrated database of each kind."""
    opened = await fresh(request.param)
    yield opened
    await opened.dispose()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, fresh) -> AsyncIterator[Store]:
    """Every implementation of the repositories."""
    kind = request.param
    opened = MemoryDatabase() if kind == "memory" else await fresh(kind)
    yield opened
    await opened.dispose()
