"""Runs one administrative step against the database and turns its errors into exit codes.

Exit 1: it failed, with one line on stderr. Exit 2: a value was wrong. SQLAlchemy and the settings
load only when a step runs, so that help and wrong use answer at once.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from tenancy.errors import InvalidValueError, TenancyError

if TYPE_CHECKING:
    from gateway.settings import Settings
    from tenancy.db import Database
    from tenancy.repositories import Repositories

T = TypeVar("T")


FAILED = 1
WRONG_USE = 2


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Say what went wrong on stderr and exit."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(status)


def load_settings() -> "Settings":
    """The settings of the deployment; exits 1 where one is wrong."""
    settings = importlib.import_module("gateway.settings")
    try:
        loaded: Settings = settings.load()
    except settings.SettingsError as error:
        fail(str(error))
    return loaded


@contextmanager
def exit_codes() -> Iterator[None]:
    """Tenancy's errors as exits: 2 for a value that was given wrong, 1 for all others."""
    try:
        yield
    except InvalidValueError as error:
        raise typer.BadParameter(error.reason, param_hint=error.field) from error
    except TenancyError as error:
        fail(str(error))


def read(step: "Callable[[Repositories], Awaitable[T]]") -> T:
    """The result of a step that writes nothing."""
    return _run(lambda database: database.reading(), step, load_settings())


def write(step: "Callable[[Repositories], Awaitable[T]]", settings: "Settings | None" = None) -> T:
    """The result of a step, committed as one transaction."""
    return _run(lambda database: database.transaction(), step, settings or load_settings())


def _run(
    begin: "Callable[[Database], AbstractAsyncContextManager[Repositories]]",
    step: "Callable[[Repositories], Awaitable[T]]",
    settings: "Settings",
) -> T:
    from tenancy.db import Database

    async def work() -> T:
        database = Database(settings.effective_database_url)
        try:
            async with begin(database) as repos:
                return await step(repos)
        finally:
            await database.dispose()

    with exit_codes():
        return asyncio.run(work())
