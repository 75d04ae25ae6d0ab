"""An audit's report as tables on a terminal, and as lines of a plot."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from engine.sim.result import Line, Plot, Result
from fairness.audit_report import Gap, Report, TenantTally, Window, merged

BREACHES_SHOWN = 20
LINES_PLOTTED = 12
LEAST_WIDTH = 110
"""A narrower terminal folds lines; figures are never cut short."""
_SERVICE = ("TENANT", "WEIGHT", "BACKLOGGED", "GRANTS", "SERVICE", "BY WEIGHT", "REFUNDS", "URGENT")
_PROMISES = (
    *("TENANT", "WORST GAP", "OF BOUND", "HEAD'S AGE", "DEADLINE", "PASSED", "OVERTAKEN", "MISSED"),
)
_POOL = ("FROM", "INPUTS", "SERVICE", "URGENT", "SPREAD", "OF BOUND", "WORST GAP", "OF BOUND")


def print_report(report: Report, *, by_window: bool) -> None:
    """All of a report, to stdout."""
    console = Console(width=max(Console().width, LEAST_WIDTH))
    console.print(_title(report), highlight=False)
    total = merged(report.windows)
    if total is not None:
        windows = [*report.windows, total] if by_window else [total]
        for window in windows:
            _print_tenants(console, window)
        console.print(_table("pool", _POOL, [_pool_cells(window) for window in windows]))
    if report.degraded:
        console.print(_degraded(report))
    for breach in report.breaches[:BREACHES_SHOWN]:
        console.print(f"BREACH of {breach.check}: {breach.place}: {breach.problem}", markup=False)
    console.print(_verdict(report), highlight=False, markup=False)


def _title(report: Report) -> str:
    first, last = (report.segments[0], report.segments[-1]) if report.segments else (0, 0)
    words = (
        f"pool {report.pool}, policy {report.policy}: events {report.first_sequence} to"
        f" {report.last_sequence} in segments {first} to {last}, {report.incarnations} starts"
    )
    allowed = (
        f"\nallowed: {report.max_passes} passes of either kind, an urgent share of"
        f" {report.urgent_share_allowed:.0%} and one request of {_units(report.largest_request)}"
    )
    return words + (", ends within an event" if report.open_end else "") + allowed


def _verdict(report: Report) -> str:
    if report.kept:
        return f"kept: {report.events:,} events, every promise held\n"
    beyond = report.num_breaches - BREACHES_SHOWN
    more = f" ({beyond:,} not shown; --json has more)" if beyond > 0 else ""
    return f"BROKEN: {report.num_breaches:,} breaches{more}\n"


def _print_tenants(console: Console, window: Window) -> None:
    tallies = sorted(window.tenants.items())
    when = f"{_time(window.start)} to {_time(window.end)}"
    service = [(name, *_service_cells(tally)) for name, tally in tallies]
    promises = [(name, *_promise_cells(tally)) for name, tally in tallies]
    console.print(_table(f"service, {when}", _SERVICE, service))
    console.print(_table(f"promises, {when}", _PROMISES, promises))


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _service_cells(tally: TenantTally) -> list[str]:
    return [
        f"{tally.weight_milli / 1_000:g}",
        f"{tally.backlogged_s:,.1f} s in {tally.intervals:,}",
        f"{tally.grants:,}",
        _units(tally.service),
        _units(tally.service_norm),
        _units(tally.refunds),
        _units(tally.urgent),
    ]


def _promise_cells(tally: TenantTally) -> list[str]:
    gap, head = tally.worst_gap, tally.worst_head
    return [
        _units(gap.gap_norm),
        f"{gap.ratio:.1%}",
        f"{head.age_s:.2f} s",
        f"{head.allowed_s:.2f} s",
        str(tally.passes),
        str(tally.overtakes),
        ", ".join(f"{count} {reason}" for reason, count in sorted(tally.missed.items())) or "0",
    ]


def _pool_cells(window: Window) -> list[str]:
    gaps = [tally.worst_gap for tally in window.tenants.values()]
    worst = max(gaps, key=lambda gap: gap.ratio, default=Gap())
    share = window.spread_norm / window.bound_norm if window.bound_norm else 0.0
    return [
        _time(window.start),
        f"{window.inputs:,}",
        _units(window.service),
        f"{window.urgent_share:.2%}",
        _units(window.spread_norm),
        f"{share:.1%}",
        _units(worst.gap_norm),
        f"{worst.ratio:.1%}",
    ]


def _degraded(report: Report) -> Table:
    rows = [
        (_time(one.start), "the end" if one.end is None else _time(one.end), one.reason)
        for one in report.degraded
    ]
    return _table("degraded", ("FROM", "TO", "BY"), rows)


def _units(milli: float) -> str:
    """Service units, as docs/fairness.md counts them."""
    return f"{milli / 1_000:,.0f}"


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plotted(report: Report) -> Result:
    """Each tenant's service by its weight, and the spread beside its bound, over time."""
    windows = report.windows
    start = windows[0].start if windows else 0.0
    x = [window.start - start for window in windows]
    total = merged(windows)
    tenants = total.tenants if total is not None else {}
    chosen = sorted(tenants, key=lambda name: -tenants[name].service)[:LINES_PLOTTED]
    rates = tuple(Line(name, x, [_rate(window, name) for window in windows]) for name in chosen)
    most = "" if len(chosen) == len(tenants) else f", the {LINES_PLOTTED} with the most"
    spread = Line("spread", x, [window.spread_norm / 1_000 for window in windows])
    bound = Line("bound", x, [window.bound_norm / 1_000 for window in windows])
    seconds = f"seconds since {_time(start)} UTC"
    return Result(
        tables=(),
        plots=(
            Plot(f"{report.pool}: service by weight{most}", seconds, "units/s", rates),
            Plot(f"{report.pool}: spread and its bound", seconds, "units", (spread, bound)),
        ),
    )


def _rate(window: Window, name: str) -> float:
    tally = window.tenants.get(name)
    length = window.end - window.start
    return tally.service_norm / 1_000 / length if tally is not None and length > 0 else 0.0
