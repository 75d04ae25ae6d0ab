"""`evenhand admin quota`: limits of a tenant or a key at every level, and what is left."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Annotated, Any

import typer

from gateway.cli.admin import left, output
from gateway.cli.admin.output import JsonFlag, TenantOption
from gateway.cli.admin.parsing import LimitChange, parse_limit
from gateway.cli.admin.session import load_settings, read, write
from tenancy import tenants
from tenancy.entities import ApiKey, EffectiveLimit, Plan, Tenant
from tenancy.errors import NotFoundError
from tenancy.quotas import LIMIT_NAMES, as_mapping, effective
from tenancy.repositories import Repositories

app = typer.Typer(help="Set and show limits.", no_args_is_help=True)

IN_USE: Mapping[str, str] = MappingProxyType({"concurrency": "running", "max_queued": "queued"})
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY_ID", help="One of the tenant's keys.")
]


def _limit(name: str, text: str) -> Any:
    return typer.Option(name, parser=parse_limit, metavar="N|none", help=text)


@dataclass(frozen=True, slots=True)
class Levels:
    """A tenant's limits at every level, and its key's where one was asked for."""

    plan: Plan
    tenant: Tenant
    key: ApiKey | None

    def document(self, left_now: dict[str, Any] | None) -> dict[str, Any]:
        """As printed."""
        key_limits = None if self.key is None else self.key.limits
        limits = effective(self.plan.limits, self.tenant.limits, key_limits)
        return {
            "tenant": self.tenant.slug,
            "tenant_id": str(self.tenant.id),
            "plan": self.plan.name,
            "key": None if self.key is None else self.key.id,
            "levels": {
                "plan": asdict(self.plan.limits),
                "tenant": asdict(self.tenant.limits),
                "key": None if key_limits is None else asdict(key_limits),
            },
            "effective": {
                name: None if limit is None else asdict(limit)
                for name, limit in as_mapping(limits).items()
            },
            "left": left_now,
        }

    def left_of(self, name: str, left_now: Mapping[str, int | None]) -> int | None:
        """What the tenant may still take of one limit; limits of one request do not run out."""
        in_use = left_now.get(IN_USE.get(name, ""))
        if in_use is None:
            return left_now.get(name)
        limit: EffectiveLimit = getattr(effective(self.plan.limits, self.tenant.limits), name)
        return max(0, limit.value - in_use)


async def _levels(repos: Repositories, tenant: Tenant, key: ApiKey | None) -> Levels:
    plan = await repos.plans.get(tenant.plan)
    if plan is None:
        raise NotFoundError("plan", tenant.plan)
    return Levels(plan=plan, tenant=tenant, key=key)


def _print(levels: Levels, *, as_json: bool) -> None:
    """With what is left; a gateway that runs and does not answer is worth a warning only."""
    left_now = None
    try:
        left_now = left.ask(load_settings().admin_socket, levels.tenant.id)
    except left.LeftUnavailableError as error:
        typer.echo(f"warning: {error}", err=True)
    document = levels.document(left_now)
    if as_json:
        output.print_json(document)
        return
    columns = ["limit", "plan", "tenant"] + ["key"] * (levels.key is not None)
    rows = []
    for name in LIMIT_NAMES:
        set_at = {level: (of or {}).get(name) for level, of in document["levels"].items()}
        limit = document["effective"][name]
        value = None if limit is None else f"{limit['value']} ({limit['level']})"
        rest = None if left_now is None else levels.left_of(name, left_now)
        rows.append({"limit": name, **set_at, "effective": value, "left": rest})
    output.print_table([*columns, "effective", "left"], rows)


@app.command("set")
def change(
    *,
    tenant: TenantOption,
    key: KeyOption = None,
    rpm: Annotated[LimitChange | None, _limit("--rpm", "Requests per minute.")] = None,
    tpm: Annotated[LimitChange | None, _limit("--tpm", "Tokens per minute.")] = None,
    uncached_tpm: Annotated[
        LimitChange | None,
        _limit("--uncached-tpm", "Prompt tokens per minute that were not cached."),
    ] = None,
    concurrency: Annotated[
        LimitChange | None, _limit("--concurrency", "Answers running at once, of a tenant.")
    ] = None,
    max_queued: Annotated[LimitChange | None, _limit("--max-queued", "Requests waiting.")] = None,
    max_prompt: Annotated[
        LimitChange | None, _limit("--max-prompt", "Prompt tokens of a request.")
    ] = None,
    max_output: Annotated[
        LimitChange | None, _limit("--max-output", "Output tokens of one answer.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Set limits of a tenant, or of one key; `none` clears one at this level."""
    given = (rpm, tpm, uncached_tpm, concurrency, max_queued, max_prompt, max_output)
    changes = {
        name: limit.value
        for name, limit in zip(LIMIT_NAMES, given, strict=True)
        if limit is not None
    }
    if not changes:
        raise typer.BadParameter("give at least one limit")

    async def step(repos: Repositories) -> Levels:
        return await _levels(repos, *await tenants.change_limits(repos, tenant, changes, key))

    _print(write(step), as_json=as_json)


@app.command()
def show(*, tenant: TenantOption, key: KeyOption = None, as_json: JsonFlag = False) -> None:
    """Show limits at every level, those in force, and what is left of the tenant's."""

    async def step(repos: Repositories) -> Levels:
        owner = await tenants.find(repos, tenant)
        found = None if key is None else await tenants.find_key(repos, owner, key)
        return await _levels(repos, owner, found)

    _print(read(step), as_json=as_json)
