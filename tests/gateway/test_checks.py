"""What `doctor` looks at in a deployment, against real files, databases and sockets."""

import contextlib
import os
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from gateway import checks
from gateway.checks import Status
from gateway.settings import Settings
from migrations import runner
from tenancy.datadir import DataDir
from tenancy.keyring import Keyring
from tests.support.postgres import running_postgres


@pytest.fixture
def place(tmp_path):
    place = DataDir(tmp_path / "data")
    place.create()
    return place


# --- the data directory -------------------------------------------------------------------------


def test_a_data_directory_of_ours_is_right(place):
    finding = checks.data_directory(place.root)
    assert finding.status is Status.OK
    assert list(place.root.iterdir()) == []


def test_one_that_is_not_there_yet_is_no_failure(tmp_path):
    finding = checks.data_directory(tmp_path / "none")
    assert finding.status is Status.WARNING
    assert not (tmp_path / "none").exists()


def test_one_that_others_may_write_in_is(place):
    place.root.chmod(0o770)
    finding = checks.data_directory(place.root)
    assert (finding.status, "0770" in finding.says) == (Status.FAILED, True)


def test_a_path_too_long_for_sockets_is(tmp_path):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    assert checks.data_directory(folder).status is Status.FAILED


def test_a_file_in_its_place_is(tmp_path):
    (tmp_path / "data").write_text("")
    assert checks.data_directory(tmp_path / "data").status is Status.FAILED


@pytest.mark.parametrize(
    ("free", "status"), [(10**7, Status.FAILED), (5 * 10**8, Status.WARNING), (10**10, Status.OK)]
)
def test_space_runs_out_in_two_steps(place, free, status, monkeypatch):
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage)
    assert checks.data_directory(place.root).status is status


# --- the keyring --------------------------------------------------------------------------------


def test_a_keyring_of_ours_is_right(place):
    Keyring.create(place.keyring_path)
    assert checks.keyring(place.keyring_path, is_new=False).status is Status.OK


def test_a_missing_one_is_a_failure_unless_all_is_new(place):
    assert checks.keyring(place.keyring_path, is_new=True).status is Status.WARNING
    assert checks.keyring(place.keyring_path, is_new=False).status is Status.FAILED


def test_one_that_others_may_read_is_a_failure_and_stays_secret(place):
    ring = Keyring.create(place.keyring_path)
    place.keyring_path.chmod(0o640)
    finding = checks.keyring(place.keyring_path, is_new=True)
    assert (finding.status, "0640" in finding.says) == (Status.FAILED, True)
    assert ring.pepper.value.hex() not in finding.says


# --- the database -------------------------------------------------------------------------------


def statuses(findings):
    return {finding.check: finding.status for finding in findings}


async def test_a_database_that_is_not_there_yet(place):
    found = await checks.database(place.database_url)
    assert statuses(found) == {"database": Status.OK, "migrations": Status.WARNING}
    assert checks.is_new(found)
    assert not place.database_path.exists()


async def test_a_migrated_database(place):
    await runner.upgrade_async(place.database_url)
    found = await checks.database(place.database_url)
    assert statuses(found) == {"database": Status.OK, "migrations": Status.OK}
    assert not checks.is_new(found)


async def test_a_schema_of_another_program(place):
    await runner.upgrade_async(place.database_url)
    with contextlib.closing(sqlite3.connect(place.database_path)) as database:
        database.execute("UPDATE alembic_version SET version_num = '0000'")
        database.commit()
    found = await checks.database(place.database_url)
    assert statuses(found) == {"database": Status.OK, "migrations": Status.FAILED}
    assert "evenhand migrate" in found[1].says


async def test_a_file_that_is_no_database(place):
    place.database_path.write_bytes(b"not a database" * 1_000)
    found = await checks.database(place.database_url)
    assert set(statuses(found).values()) == {Status.FAILED}
    assert not checks.is_new(found)


@pytest.mark.parametrize("url", ["nonsense", "mysql://u:hunter2@h/d", "sqlite://"])
async def test_a_url_that_names_none(url):
    (finding,) = await checks.database(url)
    assert finding.status is Status.FAILED
    assert "hunter2" not in finding.says


async def test_postgresql_and_its_clock():
    with running_postgres() as server:
        url = await server.create_database()
        assert checks.is_new(await checks.database(url))
        await runner.upgrade_async(url)
        found = await checks.database(url)
    assert statuses(found) == {
        "database": Status.OK,
        "migrations": Status.OK,
        "database clock": Status.OK,
    }


async def test_a_postgresql_that_does_not_answer(tmp_path):
    found = await checks.database(f"postgresql+asyncpg://u:hunter2@/d?host={tmp_path}")
    assert statuses(found) == {"database": Status.FAILED, "migrations": Status.FAILED}
    assert "hunter2" not in found[0].says


# --- clocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("skew_s", "status"),
    [(0.5, Status.OK), (-0.5, Status.OK), (2, Status.WARNING), (-60, Status.FAILED)],
)
def test_the_databases_clock_may_not_be_far_from_ours(skew_s, status):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert checks.clock_skew(now + timedelta(seconds=skew_s), now).status is status


@pytest.mark.parametrize(
    ("wall_s", "newest_file", "status"),
    [
        (0.2, 0.0, Status.OK),
        (0.205, 1_000.0, Status.OK),
        (0.3, 0.0, Status.FAILED),
        (-3_600, 0.0, Status.FAILED),
        (0.2, 1_100.0, Status.FAILED),
    ],
)
def test_the_wall_clock_runs_evenly_and_never_went_back(wall_s, newest_file, status):
    found = checks.clock_finding(wall_s, 0.2, now=1_000.0, newest_file=newest_file)
    assert found.status is status


def test_files_say_when_the_clock_went_back(tmp_path):
    (tmp_path / "later").write_text("")
    os.utime(tmp_path / "later", (4e9, 4e9))
    assert checks.clock([tmp_path / "later", tmp_path / "none"]).status is Status.FAILED


# --- engines ------------------------------------------------------------------------------------

CAPACITY = {
    "slots": 4,
    "kv_tokens": {"total": 800},
    "block_size": 16,
    "max_model_len": 512,
    "model": "tiny",
}


@contextlib.asynccontextmanager
async def engine(path, health_status=200):
    """An engine that only says how it is."""

    async def health(_):
        return web.json_response({"error": {"message": "stalled"}}, status=health_status)

    async def capacity(_):
        return web.json_response(CAPACITY)

    app = web.Application()
    app.add_routes([web.get("/health", health), web.get("/capacity", capacity)])
    serving = web.AppRunner(app)
    await serving.setup()
    await web.UnixSite(serving, str(path)).start()
    try:
        yield
    finally:
        await serving.cleanup()


def settings(place, *engines):
    return Settings(data_dir=place.root, gateway={"engines": engines})


async def test_no_engine_named_is_fine(place):
    (finding,) = await checks.engines(settings(place))
    assert finding.status is Status.OK


async def test_named_engines_and_the_local_one_answer(place, tmp_path):
    other = tmp_path / "other.sock"
    async with engine(place.engine_socket), engine(other):
        found = await checks.engines(settings(place, str(other)))
        again = await checks.engines(settings(place, str(place.engine_socket)))
    assert [finding.check for finding in found] == [
        f"engine {other}",
        f"engine {place.engine_socket}",
    ]
    assert {finding.status for finding in found} == {Status.OK}
    assert "tiny: 4 slots, 800 tokens" in found[0].says
    assert len(again) == 1


async def test_a_stalled_engine_is_a_failure(place):
    async with engine(place.engine_socket, health_status=503):
        (finding,) = await checks.engines(settings(place))
    assert (finding.status, "503: stalled" in finding.says) == (Status.FAILED, True)


async def test_nobody_listening_is_a_failure(place, tmp_path):
    (finding,) = await checks.engines(settings(place, str(tmp_path / "none.sock")))
    assert finding.status is Status.FAILED
