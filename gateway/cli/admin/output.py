"""What commands print: one JSON document with `--json`, else a table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from tenancy.entities import ApiKey, Tenant

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
TenantOption = Annotated[
    str, typer.Option("--tenant", metavar="SLUG|UUID", help="The tenant, by slug or UUID.")
]
ABSENT = "-"
MAX_TABLE_WIDTH = 10_000


def print_json(document: object) -> None:
    """The document on stdout, moments in ISO 8601 and UTC."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """The named fields of each row, as wide as they are: a cut id is of no use."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=True)
    for row in rows:
        table.add_row(*(_text(row[column]) for column in columns))
    console = Console(width=MAX_TABLE_WIDTH, markup=False, highlight=False)
    console.width = console.measure(table).maximum
    console.print(table)


def _text(value: object) -> str:
    return ABSENT if value is None else str(value)


def moment(when: datetime | None) -> str | None:
    """The moment as text, to the second."""
    return None if when is None else when.isoformat(timespec="seconds")


def tenant_document(tenant: Tenant) -> dict[str, Any]:
    """A tenant as printed."""
    return {
        "id": str(tenant.id),
        "slug": tenant.slug,
        "weight": tenant.weight_milli / 1000,
        "plan": tenant.plan,
        "status": tenant.status.value,
        "created_at": moment(tenant.created_at),
        "limits": asdict(tenant.limits),
    }


def key_document(key: ApiKey, slug: str, now: datetime) -> dict[str, Any]:
    """A key as printed; there is no secret in it."""
    return {
        "id": key.id,
        "tenant": slug,
        "tenant_id": str(key.tenant_id),
        "name": key.name,
        "status": key.status(now).value,
        "created_at": moment(key.created_at),
        "expires_at": moment(key.expires_at),
        "revoked_at": moment(key.revoked_at),
        "limits": asdict(key.limits),
    }
