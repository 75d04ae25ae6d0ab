"""`evenhand migrate`."""

import json
import sqlite3
import stat
from contextlib import closing

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.migrate import migrate

app = typer.Typer()
app.command()(migrate)


def run(folder, *arguments, code=0, **env):
    found = CliRunner().invoke(app, arguments, env={"EVENHAND_DATA_DIR": str(folder)} | env)
    assert found.exit_code == code, (found.output, found.exception)
    return found


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


def test_check_says_behind_and_creates_nothing(folder):
    assert "at nothing" in run(folder, "--check", code=1).stdout
    assert json.loads(run(folder, "--check", "--json", code=1).stdout) == {
        "current": None,
        "head": "0001",
    }
    assert not folder.exists()


def test_migrate_makes_a_private_data_directory(folder):
    assert "migrated to 0001" in run(folder).stdout
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "current: 0001" in run(folder).stdout
    assert "current: 0001" in run(folder, "--check").stdout


def test_json(folder):
    assert json.loads(run(folder, "--json").stdout) == {
        "before": None,
        "current": "0001",
        "head": "0001",
    }
    assert json.loads(run(folder, "--json").stdout)["before"] == "0001"
    assert json.loads(run(folder, "--check", "--json").stdout) == {
        "current": "0001",
        "head": "0001",
    }


def test_a_database_url_needs_no_data_directory(folder, tmp_path):
    run(folder, EVENHAND_DATABASE_URL=f"sqlite:///{tmp_path / 'other.db'}")
    assert (tmp_path / "other.db").exists()
    assert not folder.exists()


@pytest.mark.parametrize(
    "url", ["postgresql://u:hunter2@127.0.0.1:1/d", "mysql://u:hunter2@h/d", "sqlite:////none/x.db"]
)
def test_failures_are_one_line_and_exit_1(folder, url):
    for arguments in ((), ("--check",)):
        if url.startswith("sqlite") and arguments:
            continue  # a file that is not there is behind, not unreachable
        found = run(folder, *arguments, code=1, EVENHAND_DATABASE_URL=url)
        assert found.stdout == ""
        assert found.stderr.startswith("error: ")
        assert len(found.stderr.splitlines()) == 1
        assert "hunter2" not in found.stderr


def test_a_schema_of_another_program_is_refused(folder):
    folder.mkdir()
    with closing(sqlite3.connect(folder / "evenhand.db")) as database:
        database.execute("create table alembic_version (version_num varchar(32))")
        database.execute("insert into alembic_version values ('abcdef')")
        database.commit()
    assert "older" in run(folder, "--check", code=1).stdout  # which abcdef may not be
    assert "not one this program knows" in run(folder, code=1).stderr
