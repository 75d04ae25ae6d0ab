"""`evenhand doctor`: one line for everything that has to be right, and exit 1 where it is not."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin.output import JsonFlag

if TYPE_CHECKING:
    from engine.settings import EngineSettings
    from gateway.checks import Finding
    from gateway.settings import Settings


def doctor(
    *,
    data_dir: Annotated[
        Path | None, typer.Option(envvar="EVENHAND_DATA_DIR", help="Database, keyring, models.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check configuration, stores, migrations, clock, disk, engines and model files."""
    from gateway.checks import Status

    findings = examine(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        widest = max(len(finding.check) for finding in findings)
        for finding in findings:
            typer.echo(f"{finding.status:<8}{finding.check:<{widest}}  {finding.says}")
    if any(finding.status is Status.FAILED for finding in findings):
        raise typer.Exit(1)


def examine(data_dir: Path | None) -> "list[Finding]":
    """All findings. Without usable settings only what does not depend on them is looked at."""
    from gateway.checks import failed, ok
    from gateway.cli.model_checks import cpu_kernels, device, torch_and_cuda

    settings, engine_settings, problems = _settings(data_dir)
    machine = [cpu_kernels(), torch_and_cuda()]
    if settings is None or engine_settings is None:
        return [failed("settings", "; ".join(problems)), *machine]
    found = [ok("settings", "every name is known, every value is possible")]
    found += _deployment(settings, engine_settings)
    return [*found, device(engine_settings), *machine]


def _settings(
    data_dir: Path | None,
) -> "tuple[Settings | None, EngineSettings | None, list[str]]":
    from pydantic import ValidationError

    from engine.settings import load_engine_settings
    from gateway.cli.engine import problems_of
    from gateway.cli.gateway import load_settings
    from gateway.settings import SettingsError

    settings, engine_settings, problems = None, None, []
    try:
        settings = load_settings({}, None, data_dir)
    except SettingsError as error:
        problems.append(str(error))
    try:
        engine_settings = load_engine_settings()
    except ValidationError as error:
        problems.append(problems_of(error))
    return settings, engine_settings, problems


def _deployment(settings: "Settings", engine_settings: "EngineSettings") -> "list[Finding]":
    import asyncio

    from gateway import checks
    from gateway.cli.model_checks import models
    from tenancy.datadir import DataDir

    place = DataDir(settings.data_dir)
    ring = settings.effective_keyring_file

    async def asked() -> "tuple[list[Finding], list[Finding]]":
        stored = await checks.database(settings.effective_database_url)
        return stored, await checks.engines(settings)

    stored, engines = asyncio.run(asked())
    return [
        checks.data_directory(settings.data_dir),
        checks.keyring(ring, is_new=checks.is_new(stored)),
        *stored,
        checks.clock([place.database_path, ring]),
        *engines,
        *models(settings.data_dir, settings.gateway.tokenizer, engine_settings),
    ]
