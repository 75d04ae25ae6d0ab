"""`evenhand audit`: what an event log proves, for people and for scripts."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin.output import JsonFlag
from gateway.cli.admin.session import WRONG_USE, fail

if TYPE_CHECKING:
    from fairness.audit_report import Report
    from gateway.auditing import Span

app = typer.Typer(help="Check recorded promises.", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Check recorded promises."""


@app.command()
def fairness(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="EVENHAND_DATA_DIR", help="The deployment's; its log is read."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="The logs' folder, where it is not the deployment's.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Only this model's pool.")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="Figures from this time, ISO 8601; UTC if bare.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", help="Figures up to this time.")] = None,
    window: Annotated[
        float | None, typer.Option(min=1.0, help="Figures also by windows of so many seconds.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write service and spread over time to this PNG file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay a pool's event log and check every promise; exit 1 on a breach."""
    from gateway.auditing import audit_log, fine_window_s, logs_below
    from gateway.eventfiles import EventLogError

    span = (_moment("--from", begin), _moment("--to", end))
    if plot is not None:
        _require_png(plot)
    try:
        directories = logs_below(log or _log_of(data_dir), pool)
        if plot is not None and len(directories) > 1:
            fail("--plot draws one pool: choose it with --pool", WRONG_USE)
        reports = []
        for directory in directories:
            window_s = fine_window_s(directory, span) if plot and not window else window
            with _progress(directory, span) as on_bytes:
                reports.append(
                    audit_log(directory, span=span, window_s=window_s, on_bytes=on_bytes)
                )
    except EventLogError as error:
        fail(str(error), WRONG_USE)
    if as_json:
        typer.echo(json.dumps([report.as_json() for report in reports]))
    else:
        from gateway.cli.audit_tables import print_report

        for report in reports:
            print_report(report, by_window=window is not None)
    if plot is not None:
        _save(reports[0], plot)
    if not all(report.kept for report in reports):
        raise typer.Exit(1)


def _log_of(data_dir: Path | None) -> Path:
    from gateway.settings import SettingsError, load

    try:
        settings = load() if data_dir is None else load(data_dir=data_dir)
    except SettingsError as error:
        fail(str(error), WRONG_USE)
    directory = settings.event_log_dir
    if directory is None:
        fail("this deployment keeps no event log: EVENHAND_FAIRNESS__EVENT_LOG is off", WRONG_USE)
    return directory


def _moment(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} wants a time like 2026-01-31T18:00:00, not {text!r}", WRONG_USE)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@contextmanager
def _progress(directory: Path, span: "Span") -> Iterator[Callable[[int], None]]:
    """On a terminal a bar on stderr; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import Progress

    from gateway.auditing import bytes_of

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(directory.name, total=bytes_of(directory, span))
        yield lambda read: progress.advance(task, read)


def _require_png(path: Path) -> None:
    if path.suffix.lower() != ".png":
        fail(f"--plot writes PNG: {path} does not end with .png", WRONG_USE)
    if path.is_dir() or not path.parent.is_dir():
        fail(f"--plot cannot write {path}", WRONG_USE)


def _save(report: "Report", path: Path) -> None:
    from engine.sim.plot import save
    from gateway.cli.audit_tables import plotted

    try:
        save(plotted(report), path)
    except OSError as error:
        fail(f"{path} was not written: {error.strerror}")
