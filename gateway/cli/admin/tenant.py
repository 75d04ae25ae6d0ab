"""`evenhand admin tenant`: who is served, with what weight and on which plan."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from gateway.cli.admin import output
from gateway.cli.admin.output import JsonFlag
from gateway.cli.admin.parsing import parse_weight
from gateway.cli.admin.session import read, write
from tenancy import tenants
from tenancy.entities import Tenant, TenantStatus
from tenancy.repositories import Repositories

app = typer.Typer(help="Create, show and change tenants.", no_args_is_help=True)

COLUMNS = ("slug", "id", "weight", "plan", "status", "created_at")
Name = Annotated[str, typer.Argument(metavar="SLUG|UUID", help="The tenant, by slug or UUID.")]
Weight = Annotated[
    int | None,
    typer.Option(
        "--weight", parser=parse_weight, metavar="W", help="Share of service, 0.001 to 1000."
    ),
]
Plan = Annotated[str | None, typer.Option("--plan", metavar="P", help="The plan's name.")]


def _show(found: Sequence[Tenant]) -> None:
    output.print_table(COLUMNS, [output.tenant_document(tenant) for tenant in found])


def _print(tenant: Tenant, *, as_json: bool) -> None:
    if as_json:
        output.print_json(output.tenant_document(tenant))
    else:
        _show([tenant])


@app.command()
def create(
    slug: Annotated[str, typer.Argument(metavar="SLUG", help="Its name: a-z, 0-9 and -.")],
    *,
    weight: Weight = None,
    plan: Plan = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a tenant; it has no key yet."""

    async def step(repos: Repositories) -> Tenant:
        return await tenants.create(
            repos,
            slug,
            now=datetime.now(UTC),
            weight_milli=tenants.DEFAULT_WEIGHT_MILLI if weight is None else weight,
            plan=tenants.DEFAULT_PLAN if plan is None else plan,
        )

    _print(write(step), as_json=as_json)


@app.command("list")
def list_all(*, as_json: JsonFlag = False) -> None:
    """List all tenants, oldest first."""

    async def step(repos: Repositories) -> tuple[Tenant, ...]:
        return await repos.tenants.all()

    found = read(step)
    if as_json:
        output.print_json([output.tenant_document(tenant) for tenant in found])
    else:
        _show(found)


@app.command()
def show(name: Name, *, as_json: JsonFlag = False) -> None:
    """Show one tenant."""

    async def step(repos: Repositories) -> Tenant:
        return await tenants.find(repos, name)

    _print(read(step), as_json=as_json)


@app.command("set")
def change(
    name: Name, *, weight: Weight = None, plan: Plan = None, as_json: JsonFlag = False
) -> None:
    """Change a tenant's weight or plan; a running gateway follows within a second."""
    if weight is None and plan is None:
        raise typer.BadParameter("give --weight or --plan")

    async def step(repos: Repositories) -> Tenant:
        return await tenants.change(repos, name, weight_milli=weight, plan=plan)

    _print(write(step), as_json=as_json)


@app.command()
def suspend(name: Name, *, as_json: JsonFlag = False) -> None:
    """Refuse all requests of a tenant until it is resumed."""

    async def step(repos: Repositories) -> Tenant:
        return await tenants.set_status(repos, name, TenantStatus.SUSPENDED)

    _print(write(step), as_json=as_json)


@app.command()
def resume(name: Name, *, as_json: JsonFlag = False) -> None:
    """Serve a suspended tenant again."""

    async def step(repos: Repositories) -> Tenant:
        return await tenants.set_status(repos, name, TenantStatus.ACTIVE)

    _print(write(step), as_json=as_json)
