"""`evenhand simulate`: runs of the real scheduler, KV cache and dispatcher in virtual time."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin.session import WRONG_USE, fail

if TYPE_CHECKING:
    from engine.sim.result import Result
    from engine.sim.scenario import Scenario


def simulate(
    scenario: Annotated[
        str | None, typer.Argument(help="Which scenario; see --list.", show_default=False)
    ] = None,
    *,
    list_scenarios: Annotated[
        bool, typer.Option("--list", help="List the scenarios and run nothing.")
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Of all that is random; the same seed, the same result.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write the plots to this PNG file.")] = None,
) -> None:
    """Run a scenario in virtual time and print what it found (docs/simulator.md)."""
    from engine.sim.scenarios import SCENARIOS

    if list_scenarios:
        _print_list(SCENARIOS.values(), as_json=as_json)
        return
    if scenario is None:
        fail("name a scenario; evenhand simulate --list shows them", WRONG_USE)
    if scenario not in SCENARIOS:
        fail(f"no scenario {scenario!r}; there are: {', '.join(SCENARIOS)}", WRONG_USE)
    if plot is not None:
        _require_plot(SCENARIOS[scenario], plot)
    result = SCENARIOS[scenario].simulate(seed)
    if as_json:
        typer.echo(json.dumps(result.as_json(scenario, seed)))
    else:
        _print_tables(result)
    if plot is not None:
        _save(result, plot)


def _print_list(scenarios: Iterable["Scenario"], *, as_json: bool) -> None:
    if as_json:
        listed = [{"name": s.name, "summary": s.summary, "plots": s.plots} for s in scenarios]
        typer.echo(json.dumps(listed))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("SCENARIO", "WHAT IT SHOWS", "PLOT", box=None)
    for scenario in scenarios:
        table.add_row(scenario.name, scenario.summary, "yes" if scenario.plots else "")
    Console().print(table)


def _print_tables(result: "Result") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for found in result.tables:
        table = Table(title=found.title, title_justify="left", box=None)
        for index, column in enumerate(found.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in found.rows:
            table.add_row(*(_text(cell) for cell in row))
        console.print(table)
        console.print()


def _text(cell: str | float) -> str:
    """A cell as people read it: whole numbers in full, others to about four digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    size = abs(cell)
    decimals = 0 if size >= 1_000 or not size else 1 if size >= 100 else 2 if size >= 1 else 4
    return f"{cell:,.{decimals}f}"


def _require_plot(scenario: "Scenario", path: Path) -> None:
    """Say before a long run that it has no plot, or that it could not be written."""
    if not scenario.plots:
        fail(f"{scenario.name} has no plot; evenhand simulate --list shows who has", WRONG_USE)
    if path.suffix.lower() != ".png":
        fail(f"--plot writes PNG: {path} does not end with .png", WRONG_USE)
    if path.is_dir() or not path.parent.is_dir():
        fail(f"--plot cannot write {path}", WRONG_USE)


def _save(result: "Result", path: Path) -> None:
    from engine.sim.plot import save

    try:
        save(result, path)
    except OSError as error:
        fail(f"{path} was not written: {error.strerror}")
