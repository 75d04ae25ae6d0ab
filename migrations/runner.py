"""Brings a database to the newest schema, under a lock, so that any number may start at once.

PostgreSQL: a session advisory lock, with time limits on locks and statements. SQLite: a lock on a
file beside the database. Whoever comes second finds nothing left to do.
"""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from tenancy.db import make_engine, parse_url, reason
from tenancy.errors import StoreUnavailableError, TenancyError

LOCK_WAIT_S = 60
ADVISORY_LOCK = 0x4556454E48414E44  # "EVENHAND"

_T = TypeVar("_T")


class MigrationError(TenancyError):
    """The schema could not be changed; the failed migration left no trace."""


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The revision a database is at (None: empty) and the one this program wants."""

    current: str | None
    head: str

    @property
    def is_current(self) -> bool:
        """Whether there is nothing to do."""
        return self.current == self.head


def upgrade(url: str) -> SchemaState:
    """Migrate to the newest schema; the state from before. Not for use inside an event loop.

    Raises StoreUnavailableError, MigrationError, DatabaseUrlError.
    """
    return asyncio.run(upgrade_async(url))


def check(url: str) -> SchemaState:
    """Where the database stands; creates nothing. Not for use inside an event loop.

    Raises StoreUnavailableError, DatabaseUrlError.
    """
    return asyncio.run(check_async(url))


async def upgrade_async(url: str) -> SchemaState:
    """As `upgrade`."""
    target = parse_url(url)
    async with _locked_file(target):
        return await _connected(target, _upgrade)


async def check_async(url: str) -> SchemaState:
    """As `check`."""
    target = parse_url(url)
    if _is_sqlite(target) and not os.path.exists(str(target.database)):  # noqa: ASYNC240, PTH110 - one stat
        return SchemaState(current=None, head=_head())
    return await _connected(target, _state)


def alembic_config() -> Config:
    """Alembic's configuration; the environment takes the connection from its attributes."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


def _head() -> str:
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if head is None:
        raise MigrationError("the program came without its migrations")
    return head


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _state(connection: Connection) -> SchemaState:
    current = MigrationContext.configure(connection).get_current_revision()
    return SchemaState(current=current, head=_head())


def _upgrade(connection: Connection) -> SchemaState:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_WAIT_S}s'")
        connection.exec_driver_sql(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
        # A migration that waits long for a table would make every request wait behind it.
        connection.exec_driver_sql("SET lock_timeout = '4s'")
        connection.exec_driver_sql("SET statement_timeout = '60s'")
        connection.commit()
    before = _state(connection)
    connection.rollback()
    if before.is_current:
        return before
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise MigrationError(f"the schema is not one this program knows: {error}") from error
    return before


async def _connected(url: URL, work: Callable[[Connection], _T]) -> _T:
    engine = make_engine(url, command_timeout_s=None)  # the server's own limits are longer
    try:
        async with _connection(engine.connect()) as connection:
            return await connection.run_sync(work)
    except SQLAlchemyError as error:
        raise MigrationError(f"the database refused: {reason(error)}") from error
    finally:
        await engine.dispose()  # closing the session gives the advisory lock back


@asynccontextmanager
async def _connection(connecting: AsyncConnection) -> AsyncIterator[AsyncConnection]:
    try:
        connection = await connecting.start()
    except (SQLAlchemyError, OSError) as error:
        raise StoreUnavailableError(f"the database does not answer: {reason(error)}") from error
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _locked_file(url: URL) -> AsyncIterator[None]:
    """On SQLite: the database file made readable by its owner only, and a lock beside it."""
    if not _is_sqlite(url):
        yield
        return
    path = Path(str(url.database))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        os.close(os.open(path, flags, 0o600))
        descriptor = os.open(path.with_name(path.name + ".lock"), flags, 0o600)
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error.strerror}") from error
    try:
        await asyncio.to_thread(_lock, descriptor)
        yield
    finally:
        os.close(descriptor)  # gives the lock back


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise MigrationError("another migration has held the lock for too long") from None
            time.sleep(0.05)
        else:
            return
