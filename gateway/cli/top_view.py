"""How a frame of `evenhand top` looks on a terminal."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

Document = dict[str, Any]

ABSENT = "-"
# Lines of a pool that are not tenants: title, three lines of figures, two table heads, blanks.
OTHER_LINES = 9


def view(shown: Document, *, rows: int | None) -> Group:
    """All pools below each other; `rows` is the terminal's height, None for no limit."""
    pools = shown["pools"]
    parts: list[Any] = []
    for pool in pools:
        room = None if rows is None else rows // len(pools) - OTHER_LINES - len(pool["replicas"])
        parts += [*_lines(pool), Text(), _tenants(pool, room), Text(), _replicas(pool), Text()]
    return Group(*parts)


def _lines(pool: Document) -> list[Text]:
    bound, spread = pool["spread_bound"], pool["spread"]
    terms = " + ".join(
        f"{name.replace('_', ' ')} {_number(units)}" for name, units in pool["bound_terms"].items()
    )
    service, urgent = pool["service"], pool["urgent_service"]
    share = urgent / service if service else 0.0
    missed = ", ".join(
        f"{count} {reason.replace('_', ' ')}" for reason, count in pool["missed_deadlines"].items()
    )
    title = Text(f"{pool['pool']}", "bold")
    title.append(f"  {pool['policy']}, {_number(pool['rate_per_s'])} units/s", "not bold")
    for reason in pool["degraded"]:
        title.append(f"  degraded: {reason}", "bold red")
    spread_line = Text(f"spread   {_number(spread)} of at most {_number(bound)}  = {terms}")
    if spread > bound:
        spread_line.stylize("bold red")
    jain = f"Jain     {pool['jain']:.3f}, floor {_number(pool['floor'])}"
    pinned = "a replica held" if pool["pinned"] else "none pinned"
    lane = (
        f"lane     {share:.1%} of the service urgent, {pool['urgent_grants']} grants; missed"
        f" deadlines: {missed}; passed at most {pool['overtakes_max']} times, {pinned}"
    )
    return [title, spread_line, Text(jain), Text(lane)]


def _tenants(pool: Document, room: int | None) -> Table:
    """Most served first; those there is no room for are counted."""
    table = _table(
        "TENANT", "SHARE", "WEIGHT", "COUNTER", "QUEUED", "RUNNING", "HEAD AGE", "DEADLINE", "STATE"
    )
    ordered = sorted(pool["tenants"], key=lambda one: (-(one["share"] or 0.0), one["tenant"]))
    shown = ordered if room is None else ordered[: max(1, room)]
    for one in shown:
        deadline = one["head_deadline_s"]
        late = deadline is not None and deadline < 0
        table.add_row(
            Text(one["tenant"]),
            _percent(one["share"]),
            f"{one['weight']:g}",
            _number(one["counter"]),
            str(one["queued"]),
            str(one["running"]),
            _seconds(one["head_age_s"]),
            Text(_seconds(deadline), "red" if late else ""),
            "waits" if one["backlogged"] else "blocked" if one["blocked"] else "",
        )
    if len(ordered) > len(shown):
        table.add_row(f"and {len(ordered) - len(shown)} more")
    return table


def _replicas(pool: Document) -> Table:
    table = _table(
        "REPLICA", "GRANTED", "SLOTS", "RUNNING", "WAITING", "KV", "HIT RATE", "PREEMPTED", "STATE"
    )
    for one in pool["replicas"]:
        table.add_row(
            Text(one["replica"]),
            str(one["granted"]),
            _count(one["slots"]),
            _count(one["running"]),
            _count(one["waiting"]),
            _percent(one["kv_usage"]),
            _percent(one["hit_rate"]),
            _count(one["preempted"]),
            Text("up", "green") if one["up"] else Text("down", "bold red"),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _count(value: float | None) -> str:
    return ABSENT if value is None else _number(value)


def _percent(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1%}"


def _seconds(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1f} s"
