"""The runner: to the newest schema, once, whole or not at all, however many start."""

import asyncio
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from migrations import runner
from migrations.runner import MigrationError, SchemaState, check_async, upgrade_async
from tenancy.db import make_engine, parse_url
from tenancy.errors import DatabaseUrlError, StoreUnavailableError

FAILING = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade():
    op.create_table("half", sa.Column("id", sa.Integer()))
    op.execute("INSERT INTO no_such_table VALUES (1)")
"""


async def inspected(url, work):
    """What `work` makes of a synchronous connection."""
    engine = make_engine(parse_url(url))
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    finally:
        await engine.dispose()


def table_names(connection):
    return set(inspect(connection).get_table_names())


async def test_from_nothing_to_the_newest_and_no_further(url):
    assert await check_async(url) == SchemaState(current=None, head="0001")
    assert await upgrade_async(url) == SchemaState(current=None, head="0001")
    state = await check_async(url)
    assert state.is_current
    assert await upgrade_async(url) == state


async def test_check_creates_nothing(tmp_path):
    state = await check_async(f"sqlite:///{tmp_path / 'none.db'}")
    assert not state.is_current
    assert list(tmp_path.iterdir()) == []


async def test_many_that_start_at_once_migrate_once(url):
    befores = await asyncio.gather(*(upgrade_async(url) for _ in range(4)))
    assert sorted(str(state.current) for state in befores) == ["0001", "0001", "0001", "None"]
    assert (
        await inspected(url, lambda c: c.execute(text("SELECT count(*) FROM plans")).scalar_one())
        == 1
    )


def test_processes_that_start_at_once_migrate_once(tmp_path):
    url = f"sqlite:///{tmp_path / 'evenhand.db'}"
    program = f"from migrations import runner; print(runner.upgrade({url!r}).current)"
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = sorted(process.communicate()[0].strip() for process in started)
    assert [process.returncode for process in started] == [0, 0]
    assert said == ["0001", "None"]


async def test_the_file_is_private(tmp_path):
    path = tmp_path / "evenhand.db"
    await upgrade_async(f"sqlite:///{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.fixture
def failing_migration(tmp_path, monkeypatch):
    """The migrations, followed by one that fails half-way."""
    folder = tmp_path / "migrations"
    shutil.copytree(Path(runner.__file__).parent, folder)
    (folder / "versions" / "0002_failing.py").write_text(FAILING)
    config = runner.alembic_config

    def with_failing():
        changed = config()
        changed.set_main_option("script_location", str(folder))
        return changed

    monkeypatch.setattr(runner, "alembic_config", with_failing)


@pytest.mark.usefixtures("failing_migration")
async def test_a_failed_migration_leaves_no_trace(url):
    with pytest.raises(MigrationError, match="no_such_table"):
        await upgrade_async(url)
    assert await check_async(url) == SchemaState(current="0001", head="0002")
    assert "half" not in await inspected(url, table_names)
    with pytest.raises(MigrationError):  # and the lock was given back
        await upgrade_async(url)


async def test_a_schema_from_the_future_is_left_alone(url):
    await upgrade_async(url)

    def age(connection):
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.commit()

    await inspected(url, age)
    assert await check_async(url) == SchemaState(current="9999", head="0001")
    with pytest.raises(MigrationError, match="9999"):
        await upgrade_async(url)


@pytest.mark.parametrize("work", [runner.upgrade, runner.check])
def test_what_cannot_be_reached_is_unavailable(work, tmp_path):
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database" * 100)
    for url in (f"sqlite:///{broken}", "postgresql://u:hunter2@127.0.0.1:1/d"):
        with pytest.raises(StoreUnavailableError) as caught:
            work(url)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(DatabaseUrlError):
        work("mysql://u@h/d")


def test_a_folder_that_is_missing_is_said(tmp_path):
    with pytest.raises(StoreUnavailableError, match="none"):
        runner.upgrade(f"sqlite:///{tmp_path}/none/evenhand.db")


def test_a_lock_that_is_never_given_back_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    import fcntl

    path = tmp_path / "evenhand.db"
    runner.upgrade(f"sqlite:///{path}")
    monkeypatch.setattr(runner, "LOCK_WAIT_S", 0)
    with (tmp_path / "evenhand.db.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MigrationError, match="lock"):
            runner.upgrade(f"sqlite:///{path}")
    assert runner.upgrade(f"sqlite:///{path}").is_current


async def test_a_migration_waits_for_postgresqls_lock(postgres):
    url = await postgres.create_database()
    engine = make_engine(parse_url(url))
    async with engine.connect() as holder:
        await holder.execute(text(f"SELECT pg_advisory_lock({runner.ADVISORY_LOCK})"))
        waiting = asyncio.create_task(upgrade_async(url))
        query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        while (await holder.execute(query)).scalar_one() == 0:
            assert not waiting.done()
            await asyncio.sleep(0.01)
        assert await inspected(url, table_names) == set()
    await engine.dispose()
    assert (await waiting).current is None
    assert (await check_async(url)).is_current


async def test_postgresqls_lock_is_not_waited_for_for_ever(postgres, monkeypatch):
    url = await postgres.create_database()
    monkeypatch.setattr(runner, "LOCK_WAIT_S", 0.1)
    engine = make_engine(parse_url(url))
    async with engine.connect() as holder:
        await holder.execute(text(f"SELECT pg_advisory_lock({runner.ADVISORY_LOCK})"))
        with pytest.raises(MigrationError, match="lock timeout"):
            await upgrade_async(url)
    await engine.dispose()
    assert (await upgrade_async(url)).current is None


async def test_the_drivers_limit_for_requests_does_not_cut_a_migration_off(postgres):
    url = await postgres.create_database()

    def timeout(connection):
        return connection.connection.driver_connection._config.command_timeout

    assert await runner._connected(parse_url(url), timeout) is None
    assert await inspected(url, timeout) == 10


def test_a_path_with_a_percent_sign(tmp_path):
    folder = tmp_path / "100%sure"
    folder.mkdir()
    url = f"sqlite:///{folder}/evenhand.db"
    runner.upgrade(url)
    assert runner.check(url).is_current
    with sqlite3.connect(folder / "evenhand.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
