"""`evenhand engine`: one engine alone, on a unix socket or a TCP address."""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli.admin.session import fail
from gateway.cli.gateway import load_settings, resolve_model

if TYPE_CHECKING:
    from pydantic import ValidationError


def engine(
    *,
    model: Annotated[
        str,
        typer.Option(help="A pulled name, a GGUF file, or a folder with safetensors."),
    ] = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65_535)] = 8100,
    uds: Annotated[
        Path | None, typer.Option(help="Listen on this unix socket (0600) instead.")
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"] | None,
        typer.Option(help="Where to run the model; else EVENHAND_ENGINE__DEVICE, else the CPU."),
    ] = None,
    quantization: Annotated[
        Literal["none", "activations-int8"] | None,
        typer.Option(help="8-bit activations on a CPU: faster, not exact; else the environment's."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(envvar="EVENHAND_DATA_DIR", help="Where pulled models are."),
    ] = None,
    stop_with_stdin: Annotated[
        bool, typer.Option(hidden=True, help="Exit when standard input ends: the parent is gone.")
    ] = False,
) -> None:
    """Serve one model to a gateway. Sizes come from EVENHAND_ENGINE__* (docs/operations.md)."""
    from pydantic import ValidationError

    from engine.protocol.telemetry import TelemetryError
    from engine.protocol.text.errors import ModelFileError
    from engine.server.listen import ListenError, TcpAddress, UnixAddress
    from engine.server.waiting import yield_while_waiting
    from engine.settings import load_engine_settings
    from gateway.logs import configure_logging
    from gateway.settings import SettingsError
    from kernels.cpu.library import StaleKernelsError

    if stop_with_stdin:
        threading.Thread(target=_stop_with_stdin, name="parent-watch", daemon=True).start()
    address = UnixAddress(uds) if uds is not None else TcpAddress(host, port)
    try:
        common = load_settings({}, None, data_dir)
        settings = load_engine_settings()
        chosen = {"device": device, "quantization": quantization}
        settings = settings.model_copy(update={k: v for k, v in chosen.items() if v is not None})
        source = resolve_model(model, common.data_dir)
        configure_logging(common.log_format)
        yield_while_waiting()
        # The rest loads here, after everything that can be wrong without it.
        from engine.server.main import run

        run(settings, source, address, on_ready=lambda where: typer.echo(f"ready: {where}"))
    except ValidationError as error:
        fail(problems_of(error))
    except (
        ListenError,
        ModelFileError,
        SettingsError,
        StaleKernelsError,
        TelemetryError,
        ValueError,
    ) as error:
        fail(str(error))


def problems_of(error: "ValidationError") -> str:
    """What is wrong with the engine's settings, each by the name of its variable."""
    return "; ".join(
        _problem(found["type"], found["loc"], found["msg"]) for found in error.errors()
    )


def _problem(kind: str, location: tuple[int | str, ...], message: str) -> str:
    name = "EVENHAND_" + "__".join(str(part).upper() for part in location)
    return f"unknown setting: {name}" if kind == "extra_forbidden" else f"{name}: {message}"


def _stop_with_stdin() -> None:
    """The parent holds the other end and never writes: an end of file means it is gone."""
    while os.read(0, 4096):  # unbuffered: a buffer's lock may not be held when the process ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
