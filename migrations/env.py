"""Alembic's environment: uses the runner's connection, which holds the lock, or opens `-x url=`."""

import asyncio

from alembic import context
from sqlalchemy import Connection

from tenancy.db import make_engine, parse_url
from tenancy.orm import Base


def run(connection: Connection) -> None:
    """Each migration in a transaction of its own; SQLite's DDL is transactional as we begin it."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        transaction_per_migration=True,
        transactional_ddl=True,
        render_as_batch=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_at(url: str) -> None:
    """For a developer's `alembic` command."""
    engine = make_engine(parse_url(url))
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(run_at(context.get_x_argument(as_dictionary=True)["url"]))
