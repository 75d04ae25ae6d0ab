"""`evenhand gateway`: the gateway alone, in front of engines that somebody else runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.admin.session import WRONG_USE, fail

if TYPE_CHECKING:
    from engine.model.store import ModelSource
    from gateway.settings import Settings


def gateway(
    *,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="An engine's unix socket or URL; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The pool's model: a pulled name, a GGUF file or a folder."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address of the public listener.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of the public listener; 0: any.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of the admin listener; 0: any.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="EVENHAND_DATA_DIR", help="Database, keyring, sockets.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line once it answers.")
    ] = False,
) -> None:
    """Answer tenants' requests with given engines. Settings: EVENHAND_* (docs/operations.md)."""
    from gateway.app import Endpoints, run_forever
    from gateway.listeners import CannotListen
    from gateway.settings import ConfigurationError, SettingsError
    from tenancy.errors import TenancyError

    def announce(endpoints: Endpoints) -> None:
        if as_json:
            typer.echo(json.dumps({"url": endpoints.url, "admin_url": endpoints.admin_url}))
        else:
            typer.echo(f"ready: {endpoints.url} (admin: {endpoints.admin_url})")

    options = {"host": host, "port": port, "admin_port": admin_port, "engines": engine}
    try:
        place = load_settings(options, None, data_dir).data_dir
        source = None if model is None else resolve_model(model, place)
        run_forever(load_settings(options, source, data_dir), on_ready=announce)
    except (SettingsError, ConfigurationError, CannotListen, TenancyError) as error:
        fail(str(error))


def load_settings(
    options: dict[str, Any], source: "ModelSource | None", data_dir: Path | None
) -> "Settings":
    """The settings with what options set on top; a model is both the pool's id and tokenizer.

    Raises SettingsError.
    """
    from gateway.settings import load

    chosen = {name: value for name, value in options.items() if value is not None}
    if source is not None:
        chosen |= {"model": source.model_id, "tokenizer": source.path}
    place = {} if data_dir is None else {"data_dir": data_dir}
    return load(**place, gateway=chosen)


def resolve_model(model: str, data_dir: Path | None) -> "ModelSource":
    """The files a model option names, checked; exits with one line where it names none."""
    from engine.model import store

    with model_exits():
        return store.resolve(model, data_dir)


def locate_model(model: str, data_dir: Path | None) -> "ModelSource":
    """The same for whoever hands them to an engine, which will check them."""
    from engine.model import store

    with model_exits():
        return store.locate(model, data_dir)


@contextmanager
def model_exits() -> Iterator[None]:
    """Errors about models as exits: 2 for a name that was given wrong, 1 for all others."""
    from engine.model.download import ModelUnavailableError
    from engine.model.store import UnknownModelError
    from engine.protocol.text.errors import ModelFileError

    try:
        yield
    except UnknownModelError as error:
        fail(str(error), WRONG_USE)
    except (ModelUnavailableError, ModelFileError) as error:
        fail(str(error))
