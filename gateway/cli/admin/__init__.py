"""`evenhand admin`: tenants, keys, limits and usage, in process over the deployment's database."""

import typer

from gateway.cli.admin import key, quota, tenant, usage

app = typer.Typer(help="Administer tenants, keys, limits and usage.", no_args_is_help=True)
app.add_typer(tenant.app, name="tenant")
app.add_typer(key.app, name="key")
app.add_typer(quota.app, name="quota")
app.command("usage")(usage.usage)
