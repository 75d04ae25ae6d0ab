"""`evenhand serve`: everything on this machine, from nothing to a base URL and a key.

Order matters. The addresses are bound first, so that a taken port is told at once. Then the engine
starts, and while it loads in its own process this one loads the gateway, migrates, and reads the
tokenizer. The first tenant is made last, when the gateway already answers, so that a start that
fails loses no key.
"""

import asyncio
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.admin.session import fail
from gateway.cli.gateway import load_settings, locate_model

if TYPE_CHECKING:
    from engine.model.store import ModelSource
    from gateway.app import Endpoints
    from gateway.listeners import Listeners
    from gateway.settings import Settings
    from tenancy.keyring import Keyring


@dataclass(frozen=True, slots=True)
class Started:
    """What a user needs to know once everything answers; `key` only the first time."""

    url: str
    admin_url: str
    data_dir: str
    model: str
    tenant: str
    key: str | None

    def document(self) -> dict[str, Any]:
        """The JSON line; `key` is absent, not null, when there is nothing to show."""
        members = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in members.items() if value is not None}

    def text(self) -> str:
        """The same for a person."""
        key = f"{self.key}   (tenant {self.tenant}; shown only this once)"
        lines = [
            "Evenhand is ready.",
            "",
            f"  base URL  {self.url}",
            f"  model     {self.model}",
            *([f"  API key   {key}"] if self.key else []),
            f"  admin     {self.admin_url}/metrics",
            f"  data      {self.data_dir}",
            "",
            "Ctrl-C stops it.",
        ]
        return "\n".join(lines)


def serve(
    *,
    host: Annotated[str | None, typer.Option(help="Address of the public listener.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of the public listener; 0: any.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65_535, help="Port of the admin listener; 0: any.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="EVENHAND_DATA_DIR", help="Database, keyring, models.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A name (pulled when missing), a GGUF file or a folder.")
    ] = "smollm2-135m",
    workers: Annotated[int, typer.Option(min=1, help="Gateway processes.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line once it answers.")
    ] = False,
) -> None:
    """Run the gateway and a local engine on this machine."""
    if workers > 1:
        raise typer.BadParameter(
            "more than one gateway process needs Redis to share the queue, and this build has"
            " none: start one",
            param_hint="--workers",
        )
    options = {"host": host, "port": port, "admin_port": admin_port}
    try:
        from gateway.cli.engine_process import EngineFailed
        from gateway.listeners import CannotListen
        from gateway.settings import ConfigurationError, SettingsError
        from tenancy.errors import TenancyError

        _serve(options, data_dir, model, _announcer(as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit from None  # Ctrl-C before it answered: nothing is left behind
    except (SettingsError, ConfigurationError, CannotListen, EngineFailed, TenancyError) as error:
        fail(str(error))


def _announcer(*, as_json: bool) -> Callable[[Started], None]:
    def announce(started: Started) -> None:
        typer.echo(json.dumps(started.document()) if as_json else started.text())

    return announce


def _serve(
    options: dict[str, Any], data_dir: Path | None, model: str, announce: Callable[[Started], None]
) -> None:
    import uvloop

    from gateway.listeners import bound
    from tenancy.datadir import DataDir
    from tenancy.keyring import Keyring

    settings = load_settings(options, None, data_dir)
    place = DataDir(settings.data_dir)
    engine_socket = place.engine_socket  # before anything is made: its path may be too long
    place.create()
    keyring = Keyring.load_or_create(settings.effective_keyring_file)
    source = _resolve_or_pull(model, settings.data_dir)
    options["engines"] = [str(engine_socket)]
    settings = load_settings(options, source, data_dir)
    with bound(settings) as listeners:
        uvloop.run(_run(settings, listeners, keyring, model, announce))


def _resolve_or_pull(model: str, data_dir: Path) -> "ModelSource":
    from engine.model import store
    from gateway.cli.model import fetch

    if store.is_missing(model, data_dir):
        typer.echo(f"{model} is not on this machine yet; pulling it once", err=True)
        fetch(model, data_dir)
    return locate_model(model, data_dir)


async def _run(
    settings: "Settings",
    listeners: "Listeners",
    keyring: "Keyring",
    model: str,
    announce: Callable[[Started], None],
) -> None:
    from gateway.cli.engine_process import EngineProcess

    (socket,) = settings.gateway.engines
    engine = EngineProcess(Path(socket), ["--model", model, "--data-dir", str(settings.data_dir)])
    await engine.start()
    try:
        # Loaded only now: this takes as long as the engine does, and is done beside it.
        from gateway.app import run
        from gateway.wiring import load_tokenizer
        from migrations.runner import upgrade_async

        await upgrade_async(settings.effective_database_url)
        text = load_tokenizer(settings)
        await engine.wait_ready()
        welcome = _Welcome(settings, keyring, announce)
        async with engine.supervised():
            await run(
                settings,
                listeners=listeners,
                on_ready=welcome.begin,
                keyring=keyring,
                text_model=text,
            )
        welcome.check()
    finally:
        await engine.stop()


class _Welcome:
    """Makes the first tenant and announces the start, once the gateway answers."""

    def __init__(
        self, settings: "Settings", keyring: "Keyring", announce: Callable[[Started], None]
    ) -> None:
        self._settings = settings
        self._keyring = keyring
        self._announce = announce
        self._task: asyncio.Task[None] | None = None

    def begin(self, endpoints: "Endpoints") -> None:
        """Start, from inside the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._welcome(endpoints))

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _welcome(self, endpoints: "Endpoints") -> None:
        from tenancy.bootstrap import ensure_first_tenant
        from tenancy.db import Database

        database = Database(self._settings.effective_database_url)
        try:
            tenant, key = await ensure_first_tenant(database, self._keyring)
        except BaseException:
            signal.raise_signal(signal.SIGTERM)  # nobody could use what runs: drain and say why
            raise
        finally:
            await database.dispose()
        self._announce(
            Started(
                url=endpoints.url,
                admin_url=endpoints.admin_url,
                data_dir=str(self._settings.data_dir),
                model=self._settings.gateway.model,
                tenant=tenant.slug,
                key=key,
            )
        )
