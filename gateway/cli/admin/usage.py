"""`evenhand admin usage`: what was used, summed from the usage rows."""

from datetime import datetime
from typing import Annotated, Any

import typer

from gateway.cli.admin import output
from gateway.cli.admin.output import JsonFlag
from gateway.cli.admin.parsing import Grouping, parse_groups, parse_moment
from gateway.cli.admin.session import read
from tenancy import tenants
from tenancy.repositories import Repositories
from tenancy.usage import UsageGroup, UsageQuery, UsageTotal

SUMS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "requests_cache_unknown",
)


def _row(
    total: UsageTotal, groups: tuple[UsageGroup, ...], slugs: dict[Any, str]
) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for group in groups:
        match group:
            case UsageGroup.TENANT:
                row["tenant"] = slugs.get(total.tenant_id)
                row["tenant_id"] = str(total.tenant_id)
            case UsageGroup.KEY:
                row["key"] = total.key_id
            case UsageGroup.MODEL:
                row["model"] = total.model
            case UsageGroup.DAY:
                row["day"] = str(total.day)
    return row | {name: getattr(total, name) for name in SUMS}


def usage(
    *,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="SLUG|UUID", help="Only this tenant's.")
    ] = None,
    start: Annotated[
        datetime | None,
        typer.Option("--from", parser=parse_moment, metavar="WHEN", help="From here on, UTC."),
    ] = None,
    end: Annotated[
        datetime | None,
        typer.Option("--to", parser=parse_moment, metavar="WHEN", help="Before this, UTC."),
    ] = None,
    group_by: Annotated[
        Grouping | None,
        typer.Option(
            "--group-by",
            parser=parse_groups,
            metavar="GROUP,…",
            help="Some of tenant, key, model, day; by default tenant.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show requests and tokens used, by tenant, key, model or UTC day."""
    if start is not None and end is not None and start >= end:
        raise typer.BadParameter("--from must be before --to")
    groups = (UsageGroup.TENANT,) if group_by is None else group_by.groups

    async def step(repos: Repositories) -> list[dict[str, Any]]:
        tenant_id = None if tenant is None else (await tenants.find(repos, tenant)).id
        totals = await repos.usage.totals(
            UsageQuery(tenant_id=tenant_id, start=start, end=end, group_by=groups)
        )
        slugs = {one.id: one.slug for one in await repos.tenants.all()}
        return [_row(total, groups, slugs) for total in totals]

    rows = read(step)
    if as_json:
        window = {"from": output.moment(start), "to": output.moment(end)}
        output.print_json(window | {"group_by": [str(group) for group in groups], "rows": rows})
    else:
        output.print_table([*(str(group) for group in groups), *SUMS], rows)
