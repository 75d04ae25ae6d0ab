"""`evenhand top`: who is served, who waits and how far apart they are, live from a gateway."""

import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.admin.output import JsonFlag, print_json
from gateway.cli.admin.session import WRONG_USE, fail
from gateway.cli.asking import (
    BadAnswerError,
    NoGatewayError,
    SocketConnection,
    ask,
    url_connection,
)
from gateway.cli.frames import frame

if TYPE_CHECKING:
    from rich.live import Live

TARGET = "/pools"


def top(
    *,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="EVENHAND_ADMIN_URL", help="A gateway's admin listener; else its data directory."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="EVENHAND_DATA_DIR", help="Where its admin socket is.")
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.05, max=60, help="Seconds between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Watch tenants, replicas, and the spread against its bound. Ctrl-C ends it."""
    live = not (once or as_json)
    if live and not sys.stdout.isatty():
        fail("this is no terminal: ask for --once or --json", WRONG_USE)
    look = _looker(url, data_dir)
    try:
        if live:
            _watch(look, interval)
        else:
            before = look()
            time.sleep(interval)
            _print(frame(before, look(), interval), as_json=as_json)
    except _Unavailable as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit from None


class _Unavailable(Exception):  # noqa: N818 - reads as what happened
    """Nobody answers, or nobody who can say what `top` shows."""


def _looker(url: str | None, data_dir: Path | None) -> Callable[[], dict[str, Any]]:
    """What asks for the pools. It raises _Unavailable; what was given wrong exits here."""
    if url is None:
        path = _socket_path(data_dir)
        return lambda: _look(str(path), SocketConnection(path))
    try:
        url_connection(url)
    except ValueError as error:
        fail(str(error), WRONG_USE)
    return lambda: _look(url, url_connection(url))


def _look(place: str, connection: HTTPConnection) -> dict[str, Any]:
    try:
        answer = ask(connection, TARGET)
    except NoGatewayError:
        raise _Unavailable(
            f"no gateway answers on {place}: start one, or name it with --url or --data-dir"
        ) from None
    except BadAnswerError as error:
        raise _Unavailable(f"{place} does not answer as a gateway does: {error}") from None
    if not isinstance(answer, dict) or "pools" not in answer:
        raise _Unavailable(f"{place} does not answer as a gateway does")
    return answer


def _socket_path(data_dir: Path | None) -> Path:
    from gateway.settings import SettingsError, load
    from tenancy.errors import TenancyError

    try:
        return load(**({} if data_dir is None else {"data_dir": data_dir})).admin_socket
    except (SettingsError, TenancyError) as error:
        fail(str(error))


def _print(shown: dict[str, Any], *, as_json: bool) -> None:
    from rich.console import Console

    from gateway.cli.top_view import view

    if as_json:
        print_json(shown)
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 160)  # a cut figure is of no use
    console.print(view(shown, rows=None))


def _watch(look: Callable[[], dict[str, Any]], interval: float) -> None:
    """Look and show for ever; raises _Unavailable when the gateway is gone."""
    from rich.live import Live

    from gateway.cli.top_view import view

    before = look()
    with Live(screen=True, auto_refresh=False) as live:
        _show(live, view(frame(before, before, interval), rows=live.console.height))
        while True:
            time.sleep(interval)
            now = look()
            _show(live, view(frame(before, now, interval), rows=live.console.height))
            before = now


def _show(live: "Live", what: Any) -> None:
    live.update(what, refresh=True)
