"""The `evenhand` command. Subcommands import what they need when they run, so `--help` is quick."""

from typing import Annotated

import typer

from gateway.cli import admin, audit, doctor, engine, migrate, model, serve, simulate, top
from gateway.cli import gateway as gateway_command

app = typer.Typer(
    name="evenhand",
    help="Serve language models to many tenants, evenly: a fair gateway and an isolating engine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
app.command("serve")(serve.serve)
app.command("gateway")(gateway_command.gateway)
app.command("engine")(engine.engine)
app.command("migrate")(migrate.migrate)
app.command("doctor")(doctor.doctor)
app.command("top")(top.top)
app.command("simulate")(simulate.simulate)
app.add_typer(audit.app, name="audit")
app.add_typer(model.app, name="model")
app.add_typer(admin.app, name="admin")


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the flag by position
    if wanted:
        import importlib.metadata

        typer.echo(importlib.metadata.version("evenhand"))
        raise typer.Exit


@app.callback()
def evenhand(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Serve language models to many tenants, evenly: a fair gateway and an isolating engine."""
    del version


if __name__ == "__main__":
    app()
