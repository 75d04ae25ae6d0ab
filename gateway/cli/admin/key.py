"""`evenhand admin key`: API keys. The secret is printed once, when the key is made."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from gateway.cli.admin import output
from gateway.cli.admin.output import JsonFlag, TenantOption
from gateway.cli.admin.parsing import Expiry, parse_expiry
from gateway.cli.admin.session import exit_codes, load_settings, read, write
from tenancy import tenants
from tenancy.entities import ApiKey, Tenant
from tenancy.keyring import Keyring
from tenancy.repositories import Repositories

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)

COLUMNS = ("id", "tenant", "name", "status", "created_at", "expires_at", "revoked_at")
KEY_ID_LENGTH = 10


@app.command()
def create(
    *,
    tenant: TenantOption,
    name: Annotated[str, typer.Option("--name", metavar="N", help="What it is for.")] = "",
    expires: Annotated[
        Expiry | None,
        typer.Option(
            "--expires", parser=parse_expiry, metavar="D", help="Like 90d, 12h or 2027-01-31."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a key and print its text, which cannot be shown again."""
    settings = load_settings()
    with exit_codes():
        pepper = Keyring.load(settings.effective_keyring_file).pepper
    now = datetime.now(UTC)

    async def step(repos: Repositories) -> tuple[Tenant, ApiKey, str]:
        owner = await tenants.find(repos, tenant)
        expires_at = None if expires is None else expires.moment(now)
        key, text = await tenants.issue_key(
            repos, pepper, owner, now=now, name=name, expires_at=expires_at
        )
        return owner, key, text

    owner, key, text = write(step, settings)
    document = output.key_document(key, owner.slug, now)
    if as_json:
        output.print_json(document | {"key": text})
    else:
        output.print_table(COLUMNS, [document])
        typer.echo(text)
        typer.echo("Keep it now: it cannot be shown again.", err=True)


@app.command("list")
def list_all(
    *,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="SLUG|UUID", help="Only this tenant's.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List keys, oldest first; never their secrets."""

    async def step(repos: Repositories) -> tuple[Sequence[ApiKey], Mapping[UUID, str]]:
        if tenant is None:
            owners = await repos.tenants.all()
            return await repos.keys.all(), {owner.id: owner.slug for owner in owners}
        owner = await tenants.find(repos, tenant)
        return await repos.keys.all(owner.id), {owner.id: owner.slug}

    keys, slugs = read(step)
    now = datetime.now(UTC)
    documents = [output.key_document(key, slugs[key.tenant_id], now) for key in keys]
    if as_json:
        output.print_json(documents)
    else:
        output.print_table(COLUMNS, documents)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The id, as in `key list`.")],
    *,
    as_json: JsonFlag = False,
) -> None:
    """Revoke a key for good; a running gateway refuses it within a second."""
    if len(key_id) != KEY_ID_LENGTH:  # never repeat it: it may be a whole key
        raise typer.BadParameter("give the key's id of 10 characters, not the key itself")

    async def step(repos: Repositories) -> tuple[ApiKey, str]:
        key = await repos.keys.set_revoked(key_id, datetime.now(UTC))
        owner = await tenants.find(repos, str(key.tenant_id))
        return key, owner.slug

    key, slug = write(step)
    document = output.key_document(key, slug, datetime.now(UTC))
    if as_json:
        output.print_json(document)
    else:
        output.print_table(COLUMNS, [document])
