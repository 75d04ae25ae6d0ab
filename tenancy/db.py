"""The tenancy database: engines for SQLite and PostgreSQL, and transactions over them.

SQLite runs in WAL mode with foreign keys on; a writer takes the write lock when it begins, because
a reader that turns writer half-way can fail at once instead of waiting.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tenancy.errors import DatabaseUrlError, SchemaMissingError, StoreUnavailableError
from tenancy.sql import SqlRepositories

BUSY_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def parse_url(text: str) -> URL:
    """The URL with its asynchronous driver. Raises DatabaseUrlError, without the password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise DatabaseUrlError("the database URL cannot be read") from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise DatabaseUrlError(f"databases of kind {url.drivername!r} are not supported")
    if driver.startswith("sqlite") and url.database in {None, "", ":memory:"}:
        raise DatabaseUrlError("SQLite needs a file: sqlite:////path/to/evenhand.db")
    return url.set(drivername=driver)


def make_engine(url: URL, command_timeout_s: float | None = COMMAND_TIMEOUT_S) -> AsyncEngine:
    """An engine for a URL from `parse_url`; on PostgreSQL no command may take longer than given."""
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url)
    return create_async_engine(
        url,
        pool_pre_ping=True,
        connect_args={"timeout": CONNECT_TIMEOUT_S, "command_timeout": command_timeout_s},
    )


def _sqlite_engine(url: URL) -> AsyncEngine:
    # isolation_level None: the driver begins nothing by itself, so that we can begin as we need.
    engine = create_async_engine(
        url, connect_args={"isolation_level": None, "timeout": BUSY_TIMEOUT_S}
    )

    def on_connect(connection: Any, record: object) -> None:
        del record
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("sqlite_begin", "IMMEDIATE")
        connection.exec_driver_sql(f"BEGIN {mode}")

    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)
    return engine


def reason(error: Exception) -> str:
    """The driver's own words in one line, for an administrator; they hold no password."""
    lines = str(getattr(error, "orig", None) or error).splitlines()
    return lines[0] if lines else type(error).__name__


def _is_schema_missing(error: DBAPIError) -> bool:
    is_sqlite = isinstance(error, OperationalError) and "no such table" in str(error.orig)
    return is_sqlite or getattr(error.orig, "sqlstate", None) == "42P01"


@contextmanager
def _connecting() -> Iterator[None]:
    """Whatever goes wrong before we hold a connection means the store is unavailable."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise StoreUnavailableError(f"the database does not answer: {reason(error)}") from error


@contextmanager
def _working() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, ProgrammingError) as error:
        if _is_schema_missing(error):
            raise SchemaMissingError from error
        if isinstance(error, ProgrammingError):
            raise
        raise StoreUnavailableError(f"the database failed: {reason(error)}") from error
    except DBAPIError as error:
        if not error.connection_invalidated:
            raise
        raise StoreUnavailableError("the database closed the connection") from error
    except PoolTimeoutError as error:
        raise StoreUnavailableError("all database connections are busy") from error
    except (
        OSError
    ) as error:  # asyncpg lets a broken socket and its own time-out through as they are
        raise StoreUnavailableError(f"the database failed: {reason(error)}") from error


class Database:
    """The SQL `Store`. Owns its connections until `dispose`."""

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        self._file = parsed.database if is_sqlite else None
        self._engine = make_engine(parsed)
        self._readers = self._engine.execution_options(sqlite_begin="DEFERRED")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqlRepositories]:
        """Commits on a clean exit, else takes everything back."""
        async with AsyncSession(self._engine, expire_on_commit=False) as session:
            await self._connect(session)
            with _working():
                yield SqlRepositories(session)
                await session.commit()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[SqlRepositories]:
        """For reads only: what is written inside is not kept."""
        async with AsyncSession(self._readers, expire_on_commit=False) as session:
            await self._connect(session)
            with _working():
                yield SqlRepositories(session)

    async def _connect(self, session: AsyncSession) -> None:
        """Begin. Only migrations make the file: SQLite would make an empty one for a wrong path."""
        if self._file is not None:
            if not os.path.exists(self._file):  # noqa: ASYNC240, PTH110 - one stat
                raise SchemaMissingError
            if not os.access(self._file, os.R_OK | os.W_OK):
                raise StoreUnavailableError(f"{self._file}: no permission to read and write")
        with _connecting():
            await session.connection()

    async def dispose(self) -> None:
        """Close every connection."""
        await self._engine.dispose()
