"""`evenhand admin`, as an administrator uses it, over a data directory and over PostgreSQL."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from gateway.cli.admin import app
from migrations import runner
from tenancy import api_keys, directory
from tenancy.db import Database
from tenancy.entities import TenantContext
from tenancy.keyring import Keyring
from tests.support.postgres import running_postgres
from tests.support.tenancy import usage_row


class Admin:
    """Runs commands against one deployment."""

    def __init__(self, folder, url):
        self.env = {"EVENHAND_DATA_DIR": str(folder), "EVENHAND_DATABASE_URL": url}
        self.url = url
        self.keyring = folder / "keyring.json"

    def run(self, *arguments, code=0):
        found = CliRunner().invoke(app, arguments, env=self.env)
        assert found.exit_code == code, (found.output, found.stderr, found.exception)
        return found

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json").stdout)

    def fails(self, *arguments, code=1):
        """What is said on stderr; nothing goes to stdout."""
        found = self.run(*arguments, code=code)
        assert found.stdout == ""
        if code == 1:
            assert len(found.stderr.splitlines()) == 1
            assert found.stderr.startswith("error: ")
        return found.stderr

    def within(self, step):
        """The result of a step inside a transaction."""

        async def work():
            database = Database(self.url)
            try:
                async with database.transaction() as repos:
                    return await step(repos)
            finally:
                await database.dispose()

        return asyncio.run(work())


@pytest.fixture(scope="module")
def postgres():
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def admin(request, tmp_path):
    """A migrated deployment with a keyring."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'evenhand.db'}"
    else:
        url = asyncio.run(request.getfixturevalue("postgres").create_database())
    runner.upgrade(url)
    Keyring.create(tmp_path / "keyring.json")
    return Admin(tmp_path, url)


@pytest.fixture
def plain(tmp_path):
    """A migrated deployment on SQLite."""
    url = f"sqlite:///{tmp_path / 'evenhand.db'}"
    runner.upgrade(url)
    Keyring.create(tmp_path / "keyring.json")
    return Admin(tmp_path, url)


def test_the_life_of_a_tenant(admin):
    made = admin.json("tenant", "create", "acme", "--weight", "2.5")
    assert (made["slug"], made["weight"], made["plan"], made["status"]) == (
        "acme",
        2.5,
        "default",
        "active",
    )
    assert admin.json("tenant", "show", "acme") == made
    assert admin.json("tenant", "show", made["id"]) == made
    assert admin.json("tenant", "set", "acme", "--weight", "3") == made | {"weight": 3}
    assert admin.json("tenant", "suspend", "acme")["status"] == "suspended"
    assert admin.json("tenant", "resume", "acme")["status"] == "active"
    other = admin.json("tenant", "create", "beta", "--plan", "default")
    assert admin.json("tenant", "list") == [made | {"weight": 3}, other]
    assert "exists already" in admin.fails("tenant", "create", "acme")


def test_the_life_of_a_key(admin):
    admin.json("tenant", "create", "acme")
    made = admin.json("key", "create", "--tenant", "acme", "--name", "ci", "--expires", "30d")
    text = made.pop("key")
    assert (made["tenant"], made["name"], made["status"]) == ("acme", "ci", "active")
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(
        made["created_at"]
    )
    assert lifetime == timedelta(days=30)
    pepper = Keyring.load(admin.keyring).pepper.value

    async def load(repos):
        digest = api_keys.digest(pepper, text)
        return await directory.load_context(repos, made["id"], digest, datetime.now(UTC))

    assert isinstance(admin.within(load), TenantContext)
    assert admin.json("key", "list") == admin.json("key", "list", "--tenant", "acme") == [made]
    revoked = admin.json("key", "revoke", made["id"])
    assert revoked["status"] == "revoked"
    assert admin.within(load) is directory.Refusal.REVOKED
    assert admin.json("key", "revoke", made["id"]) == revoked
    assert admin.json("key", "list") == [revoked]
    assert "no key" in admin.fails("key", "revoke", "unknown000")
    assert "no tenant" in admin.fails("key", "create", "--tenant", "nobody")


def test_the_text_of_a_key_is_shown_once(plain):
    plain.run("tenant", "create", "acme")
    shown = plain.run("key", "create", "--tenant", "acme")
    (text,) = [line for line in shown.stdout.splitlines() if line.startswith("eh_")]
    assert api_keys.parse(text)
    for command in (("key", "list"), ("key", "list", "--json")):
        assert text.split("_")[3] not in plain.run(*command).output
    assert text not in plain.fails("key", "revoke", text, code=2)


def test_limits_at_every_level(admin):
    admin.json("tenant", "create", "acme")
    key = admin.json("key", "create", "--tenant", "acme")["id"]
    shown = admin.json("quota", "set", "--tenant", "acme", "--rpm", "60", "--max-output", "1000")
    assert shown["levels"]["tenant"]["rpm"] == 60
    assert shown["levels"]["plan"]["rpm"] == 600
    assert shown["levels"]["key"] is None
    assert shown["effective"]["rpm"] == {"value": 60, "level": "tenant"}
    assert shown["effective"]["max_output"] == {"value": 1000, "level": "tenant"}
    assert shown["effective"]["uncached_tpm"] is None
    assert shown["left"] is None
    assert admin.json("quota", "show", "--tenant", "acme") == shown
    of_key = admin.json("quota", "set", "--tenant", "acme", "--key", key, "--rpm", "2")
    assert of_key["effective"]["rpm"] == {"value": 2, "level": "key"}
    assert of_key["levels"]["key"]["rpm"] == 2
    assert admin.json("quota", "show", "--tenant", "acme", "--key", key) == of_key
    assert admin.json("quota", "show", "--tenant", "acme") == shown
    cleared = admin.json("quota", "set", "--tenant", "acme", "--rpm", "none")
    assert cleared["effective"]["rpm"] == {"value": 600, "level": "plan"}
    assert cleared["levels"]["tenant"]["max_output"] == 1000
    assert "no key" in admin.fails("quota", "show", "--tenant", "acme", "--key", "unknown000")


def test_every_limit_has_its_option(plain):
    plain.run("tenant", "create", "acme")
    names = list(plain.json("quota", "show", "--tenant", "acme")["levels"]["plan"])
    options = [part for name in names for part in (f"--{name.replace('_', '-')}", "7")]
    shown = plain.json("quota", "set", "--tenant", "acme", *options)
    assert shown["levels"]["tenant"] == dict.fromkeys(names, 7)


def test_usage_is_summed(admin):
    tenant = admin.json("tenant", "create", "acme")["id"]
    day = datetime(2026, 11, 15, tzinfo=UTC)

    async def insert(repos):
        one = (await repos.tenants.by_slug("acme")).id
        await repos.usage.insert(
            [
                usage_row(tenant_id=one, created_at=day, cached_tokens=4),
                usage_row(tenant_id=one, created_at=day + timedelta(days=1), cached_tokens=None),
                usage_row(created_at=day),  # of a tenant that is gone
            ]
        )

    admin.within(insert)
    mine = {
        "requests": 2,
        "prompt_tokens": 20,
        "cached_tokens": 4,
        "output_tokens": 10,
        "requests_cache_unknown": 1,
    }
    shown = admin.json("usage", "--tenant", "acme")
    assert shown["rows"] == [{"tenant": "acme", "tenant_id": tenant} | mine]
    everyone = admin.json("usage")["rows"]
    assert sorted(str(row["tenant"]) for row in everyone) == ["None", "acme"]
    by_day = admin.json("usage", "--tenant", "acme", "--group-by", "day,model")
    assert [row["day"] for row in by_day["rows"]] == ["2026-11-15", "2026-11-16"]
    assert by_day["group_by"] == ["day", "model"]
    window = ("--from", "2026-11-15", "--to", "2026-11-16T00:00Z")
    assert sum(row["requests"] for row in admin.json("usage", *window)["rows"]) == 2
    assert "no tenant" in admin.fails("usage", "--tenant", "nobody")


def test_tables_show_whole_ids(plain):
    made = plain.json("tenant", "create", "a" * 63)
    key = plain.json("key", "create", "--tenant", made["id"], "--name", "[bold]x[/bold]")
    assert made["id"] in plain.run("tenant", "list").stdout
    assert made["slug"] in plain.run("tenant", "show", made["id"]).stdout
    listed = plain.run("key", "list").stdout
    assert key["id"] in listed
    assert "[bold]x[/bold]" in listed
    assert "600 (plan)" in plain.run("quota", "show", "--tenant", made["id"]).stdout
    assert "requests" in plain.run("usage").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("tenant", "create", "Not A Slug"),
        ("tenant", "create", "a", "--weight", "0"),
        ("tenant", "create", "a", "--weight", "-1"),
        ("tenant", "create", "a", "--weight", "1000.001"),
        ("tenant", "create", "a", "--weight", "0.0001"),
        ("tenant", "create", "a", "--weight", "nan"),
        ("tenant", "create", "a", "--weight", "1e9"),
        ("tenant", "create"),
        ("tenant", "set", "acme"),
        ("tenant", "set", "acme", "--weight", "inf"),
        ("key", "create"),
        ("key", "create", "--tenant", "acme", "--expires", "0d"),
        ("key", "create", "--tenant", "acme", "--expires", "soon"),
        ("key", "create", "--tenant", "acme", "--expires", "999999w"),
        ("key", "create", "--tenant", "acme", "--expires", "2020-01-01"),
        ("key", "create", "--tenant", "acme", "--expires", "0001-01-01T00:00+14:00"),
        ("key", "create", "--tenant", "acme", "--name", "x" * 65),
        ("key", "create", "--tenant", "acme", "--name", "a\nb"),
        ("key", "revoke", "short"),
        ("quota", "set", "--tenant", "acme"),
        ("quota", "set", "--tenant", "acme", "--rpm", "0"),
        ("quota", "set", "--tenant", "acme", "--rpm", "-5"),
        ("quota", "set", "--tenant", "acme", "--tpm", "1000000000001"),
        ("quota", "set", "--tenant", "acme", "--tpm", "9" * 400),
        ("quota", "set", "--tenant", "acme", "--concurrency", "1.5"),
        ("quota", "set", "--tenant", "acme", "--concurrency", "٣"),
        ("quota", "set", "--rpm", "1"),
        ("usage", "--group-by", "week"),
        ("usage", "--group-by", "day,day"),
        ("usage", "--group-by", ""),
        ("usage", "--from", "yesterday"),
        ("usage", "--from", "2026-11-16", "--to", "2026-11-15"),
        ("nonsense",),
        (),
    ],
)
def test_wrong_use_exits_2_and_changes_nothing(plain, arguments):
    plain.run("tenant", "create", "acme")
    before = plain.json("tenant", "list")
    found = plain.run(*arguments, code=2)
    assert "Traceback" not in found.output
    assert plain.json("tenant", "list") == before
    assert plain.json("key", "list") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("tenant", "show", "nobody"),
        ("tenant", "set", "nobody", "--weight", "1"),
        ("tenant", "set", "acme", "--plan", "gold"),
        ("tenant", "create", "new", "--plan", "gold"),
        ("tenant", "suspend", "nobody"),
        ("tenant", "resume", "nobody"),
        ("key", "list", "--tenant", "nobody"),
        ("quota", "set", "--tenant", "nobody", "--rpm", "1"),
        ("quota", "show", "--tenant", "nobody"),
    ],
)
def test_what_is_not_there_exits_1(plain, arguments):
    plain.run("tenant", "create", "acme")
    plain.fails(*arguments)
    assert len(plain.json("tenant", "list")) == 1


def test_a_deployment_that_is_not_there_exits_1(tmp_path):
    absent = Admin(tmp_path, f"sqlite:///{tmp_path / 'none.db'}")
    assert "evenhand migrate" in absent.fails("tenant", "list")
    assert "keyring.json" in absent.fails("key", "create", "--tenant", "acme")
    down = Admin(tmp_path, "postgresql://u:hunter2@127.0.0.1:1/d")
    said = down.fails("tenant", "list")
    assert "does not answer" in said
    assert "hunter2" not in said
    assert list(tmp_path.iterdir()) == []


def test_the_data_directory_is_enough(tmp_path, monkeypatch):
    monkeypatch.delenv("EVENHAND_DATABASE_URL", raising=False)
    runner.upgrade(f"sqlite:///{tmp_path / 'evenhand.db'}")
    env = {"EVENHAND_DATA_DIR": str(tmp_path)}
    found = CliRunner().invoke(app, ["tenant", "list", "--json"], env=env)
    assert (found.exit_code, found.stdout) == (0, "[]\n")
    wrong = CliRunner().invoke(app, ["tenant", "list"], env=env | {"EVENHAND_NO_SUCH": "1"})
    assert wrong.exit_code == 1
    assert "EVENHAND_NO_SUCH" in wrong.stderr


def test_a_command_loads_nothing_heavy(plain):
    program = (
        "import sys\n"
        "from gateway.cli.admin import app\n"
        "early = [name for name in ('sqlalchemy', 'pydantic', 'alembic') if name in sys.modules]\n"
        "app(['tenant', 'list', '--json'], standalone_mode=False)\n"
        "late = [n for n in ('torch', 'numba', 'fastapi', 'alembic') if n in sys.modules]\n"
        "print(early + late)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | plain.env,
    )
    assert found.stdout.splitlines() == ["[]", "[]"]
