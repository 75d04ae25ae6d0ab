"""`evenhand migrate`: brings the database to the newest schema, or says whether it is there."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin import output
from gateway.cli.admin.output import JsonFlag
from gateway.cli.admin.session import exit_codes, load_settings

if TYPE_CHECKING:
    from migrations.runner import SchemaState


def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only look: exit 1 where the schema is behind.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Bring the database to the newest schema; safe to start any number of times at once.

    A new deployment gets its keyring here too, in the data directory or where it is said to be.
    An older one without its keyring does not: new secrets would make every key of it worthless.
    """
    from migrations import runner
    from tenancy.datadir import DataDir
    from tenancy.keyring import Keyring

    settings = load_settings()
    url = settings.effective_database_url
    with exit_codes():
        if not check and settings.database_url is None:
            DataDir(settings.data_dir).create()
        state = runner.check(url) if check else runner.upgrade(url)
        named = settings.database_url is None or settings.keyring_file is not None
        if not check and state.current is None and named:
            Keyring.load_or_create(settings.effective_keyring_file)
    now = state.current if check else state.head
    if as_json:
        before = {} if check else {"before": state.current}
        output.print_json(before | {"current": now, "head": state.head})
    else:
        typer.echo(_sentence(now, state))
    if now != state.head:
        raise typer.Exit(1)


def _sentence(now: str | None, state: "SchemaState") -> str:
    if now != state.head:
        return (
            f"the schema is at {now or 'nothing'}, this program's at {state.head}:"
            " `evenhand migrate` takes an older one there"
        )
    if state.is_current:
        return f"the schema is current: {state.head}"
    return f"the schema was migrated to {state.head}"
