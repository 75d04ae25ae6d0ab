"""What a scenario found, in one form for the terminal, JSON and plots."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from engine.sim.report import Report

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; units are in the names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row of {self.title!r} does not have a cell per column")

    def records(self) -> list[dict[str, Cell]]:
        """The rows as mappings from column to cell."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Line:
    """A named line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over one pair of axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Everything one scenario found with one seed."""

    tables: tuple[Table, ...]
    plots: tuple[Plot, ...] = ()
    reports: Mapping[str, Report] | None = None

    def as_json(self, scenario: str, seed: int) -> dict[str, object]:
        """The tables, and every run's whole report, as JSON values."""
        return {
            "scenario": scenario,
            "seed": seed,
            "tables": [{"title": table.title, "rows": table.records()} for table in self.tables],
            "runs": {name: asdict(run) for name, run in (self.reports or {}).items()},
        }


def run_table(title: str, runs: Mapping[str, Report]) -> Table:
    """One column per run, one row for each thing that is most often asked of one."""
    rows = tuple(
        (measure, *(read(run) for run in runs.values())) for measure, read in _MEASURES.items()
    )
    return Table(title, ("measure", *runs), rows)


_MEASURES: Mapping[str, Callable[[Report], Cell]] = {
    "output tokens/s": lambda run: run.output_tokens_per_s,
    "goodput (requests/s)": lambda run: run.goodput_per_s,
    "TTFT p50 (s)": lambda run: run.ttft.p50,
    "TTFT p99 (s)": lambda run: run.ttft.p99,
    "ITL p50 (ms)": lambda run: 1e3 * run.itl.p50,
    "ITL p99 (ms)": lambda run: 1e3 * run.itl.p99,
    "TPOT p50 (ms)": lambda run: 1e3 * run.tpot.p50,
    "TPOT p99 (ms)": lambda run: 1e3 * run.tpot.p99,
    "slots used (%)": lambda run: 100 * run.slot_utilisation,
    "KV used (%)": lambda run: 100 * run.kv_utilisation,
    "preemptions": lambda run: run.preemptions,
    "recomputed (%)": lambda run: 100 * run.recompute_share,
    "hit rate (%)": lambda run: 100 * run.hit_rate,
}
