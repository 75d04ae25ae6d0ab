"""The database itself: URLs, SQLite's settings, writers at once, and what failures become."""

import asyncio
import sqlite3

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from tenancy import tenants
from tenancy.db import Database, parse_url
from tenancy.entities import Limits
from tenancy.errors import (
    DatabaseUrlError,
    SchemaMissingError,
    SlugTakenError,
    StoreUnavailableError,
)
from tests.support.tenancy import NOW, add_key, add_tenant


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:////a/b.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:///b.db", "sqlite+aiosqlite"),
        ("postgres://u@h/d", "postgresql+asyncpg"),
        ("postgresql://u@h/d", "postgresql+asyncpg"),
        ("postgresql+asyncpg://u@h/d", "postgresql+asyncpg"),
    ],
)
def test_urls_get_their_driver(given, driver):
    assert parse_url(given).drivername == driver


@pytest.mark.parametrize(
    "given",
    ["", "nonsense", "mysql://u:hunter2@h/d", "sqlite://", "sqlite:///:memory:", "http://h:x2/d"],
)
def test_other_urls_are_refused_without_showing_them(given):
    with pytest.raises(DatabaseUrlError) as caught:
        parse_url(given)
    assert "hunter2" not in str(caught.value)


async def test_sqlite_is_set_up_on_every_connection(database):
    async with database._engine.connect() as connection:
        if connection.dialect.name != "sqlite":
            pytest.skip("SQLite only")
        pragmas = {
            name: (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()
            for name in ("journal_mode", "foreign_keys", "busy_timeout", "synchronous")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "busy_timeout": 5_000,
        "synchronous": 2,
    }


async def test_sqlite_writers_lock_when_they_begin_and_readers_do_not(database):
    begun = []
    event.listen(
        database._engine.sync_engine,
        "before_cursor_execute",
        lambda _c, _cur, statement, *_rest: begun.append(statement),
    )
    async with database.transaction() as writer:
        await tenants.create(writer, "acme", now=NOW)
        async with database.reading() as reader:  # not kept waiting by the writer
            assert await reader.tenants.all() == ()
    if database._file is not None:
        assert [line for line in begun if line.startswith("BEGIN")] == [
            "BEGIN IMMEDIATE",
            "BEGIN DEFERRED",
        ]


async def test_concurrent_changes_are_all_kept(database):
    """Each reads, changes and writes the whole tenant; none may overwrite another's change."""
    await add_tenant(database)

    async def change(name):
        async with database.transaction() as repos:
            await tenants.change_limits(repos, "acme", {name: 3})

    async def set_weight():
        async with database.transaction() as repos:
            await tenants.change(repos, "acme", weight_milli=5_000)

    await asyncio.gather(change("rpm"), set_weight(), change("tpm"), change("concurrency"))
    async with database.reading() as repos:
        found = await tenants.find(repos, "acme")
        assert await repos.revision() == 5
    assert found.weight_milli == 5_000
    assert found.limits == Limits(rpm=3, tpm=3, concurrency=3)


async def test_of_many_that_want_a_slug_one_gets_it(database):
    found = await asyncio.gather(
        *(add_tenant(database, "acme") for _ in range(5)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in found) == ["SlugTakenError"] * 4 + ["Tenant"]
    assert any(isinstance(one, SlugTakenError) for one in found)
    async with database.reading() as repos:
        assert await repos.revision() == 1


async def test_foreign_keys_hold(database):
    await add_key(database, await add_tenant(database))
    with pytest.raises(IntegrityError):
        async with database.transaction() as repos:
            await repos.session.execute(text("DELETE FROM tenants"))


async def test_naive_moments_are_refused(database):
    with pytest.raises(Exception, match="time zone"):
        await add_tenant(database, now=NOW.replace(tzinfo=None))


async def test_an_unmigrated_database_says_so(tmp_path, postgres):
    empty = tmp_path / "empty.db"
    sqlite3.connect(empty).close()
    urls = [
        f"sqlite:///{tmp_path}/none.db",
        f"sqlite:///{empty}",
        await postgres.create_database(),
    ]
    for url in urls:
        database = Database(url)
        try:
            with pytest.raises(SchemaMissingError, match="evenhand migrate"):
                await add_tenant(database)
            with pytest.raises(SchemaMissingError):
                async with database.reading() as repos:
                    await repos.revision()
        finally:
            await database.dispose()
    assert not (tmp_path / "none.db").exists()


async def test_a_database_that_does_not_answer_is_unavailable(tmp_path, postgres):
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database" * 100)
    urls = [
        f"sqlite:///{broken}",
        "postgresql://u:hunter2@127.0.0.1:1/d",
        f"postgresql://u@/d?host={tmp_path}",
        postgres.url("no_such_database"),
    ]
    for url in urls:
        database = Database(url)
        try:
            with pytest.raises(StoreUnavailableError) as caught:
                async with database.reading() as repos:
                    await repos.revision()
        finally:
            await database.dispose()
        assert "hunter2" not in str(caught.value)


async def test_a_connection_cut_off_mid_way_is_unavailable(postgres):
    from migrations.runner import upgrade_async

    url = await postgres.create_database()
    await upgrade_async(url)
    database = Database(url)
    kill = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    async def cut_off():
        async with database.transaction() as victim:
            await victim.revision()
            async with database.reading() as other:
                await other.session.execute(kill)
            await victim.revision()

    try:
        with pytest.raises(StoreUnavailableError):
            await cut_off()
        async with database.reading() as repos:
            assert await repos.revision() == 0
    finally:
        await database.dispose()


@pytest.mark.parametrize("error", [ConnectionResetError("reset by peer"), TimeoutError()])
async def test_a_socket_that_breaks_under_a_statement_is_an_unavailable_store(database, error):
    for opened in (database.reading, database.transaction):
        with pytest.raises(StoreUnavailableError) as caught:
            async with opened():
                raise error
        assert caught.value.__cause__ is error
