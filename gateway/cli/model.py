"""`evenhand model`: which models are on this machine, and how to get one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.model.download import ModelUnavailableError
from engine.model.download import Progress as Callback
from engine.model.store import ModelEntry, UnknownModelError, entries, locate
from engine.model.store import pull as pull_model
from gateway.cli.admin.session import WRONG_USE, fail, load_settings
from gateway.cli.engine import problems_of

if TYPE_CHECKING:
    from engine.settings import EngineSettings

app = typer.Typer(help="Pull models and list them.", no_args_is_help=True)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Where Evenhand keeps its data.", envvar="EVENHAND_DATA_DIR"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="smollm2-135m, or hf:ORG/NAME.")],
    *,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model once, check it, and print where it is."""
    path = fetch(name, data_dir or load_settings().data_dir)
    typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))


def fetch(name: str, data_dir: Path) -> Path:
    """Pull with a progress bar; exits with one line where that fails."""
    try:
        with _progress_bar() as callback:
            return pull_model(name, data_dir, callback)
    except UnknownModelError as error:
        fail(str(error), WRONG_USE)
    except ModelUnavailableError as error:
        fail(str(error))


@app.command("list")
def list_models(*, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the models that are here, and those that can be pulled by name."""
    from pydantic import ValidationError

    from engine.settings import load_engine_settings

    place = data_dir or load_settings().data_dir
    try:
        settings = load_engine_settings()
    except ValidationError as error:
        fail(problems_of(error))
    listed = [_document(entry, place, settings) for entry in entries(place)]
    if as_json:
        typer.echo(json.dumps(listed))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("NAME", "STATE", "FAMILY", "TYPE", "SIZE", "MEMORY", "", box=None)
    for model in listed:
        table.add_row(
            model["name"],
            model["state"],
            model.get("family", ""),
            model.get("type", ""),
            f"{model['bytes'] / 1e6:.0f} MB",
            f"{model['memory_bytes'] / 1e9:.2f} GB" if "memory_bytes" in model else "",
            model.get("problem", model["description"]),
        )
    Console().print(table)


def _document(entry: ModelEntry, data_dir: Path, settings: "EngineSettings") -> dict[str, Any]:
    """What is printed of a model; family, type and memory of one that can be loaded."""
    listed = {
        "name": entry.name,
        "description": entry.description,
        "present": entry.path is not None,
        "path": str(entry.path) if entry.path else None,
        "bytes": entry.num_bytes,
    }
    if entry.path is None:
        return {**listed, "state": "not pulled"}
    from engine.model.inspect import inspect
    from engine.protocol.text.errors import ModelFileError
    from gateway.cli.model_checks import memory_needed

    try:
        found = inspect(locate(entry.name, data_dir).path)
    except ModelFileError as error:
        return {**listed, "state": "unusable", "problem": error.reason}
    return {
        **listed,
        "state": "here",
        "family": found.family,
        "type": found.main_type,
        "memory_bytes": memory_needed(found, settings),
    }


@contextmanager
def _progress_bar() -> Iterator[Callback | None]:
    """A bar on standard error, and nothing at all when that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(done: int, total: int | None, phase: str) -> None:
            bar.update(task, completed=done, total=total, description=phase)

        yield show
