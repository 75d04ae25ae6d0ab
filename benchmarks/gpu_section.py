"""What one section of `make gpu-check` found, and how it is shown."""

import time
from dataclasses import dataclass, field


@dataclass
class Section:
    """What one section found; `figures` are rows of a table."""

    name: str
    budget_s: float
    seconds: float = 0.0
    checks: int = 0
    wrong: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    figures: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.budget_s

    @property
    def in_time(self) -> bool:
        return time.monotonic() < self._deadline

    def check(self, name: str, fault: str | None) -> None:
        self.checks += 1
        if fault is not None:
            self.wrong.append(f"{name}: {fault}")
            say(f"  WRONG {self.wrong[-1]}")

    def skip(self, name: str, why: str) -> None:
        self.skipped.append(f"{name}: {why}")
        say(f"  SKIPPED {self.skipped[-1]}")


def say(line: str) -> None:
    print(line, flush=True)


def table(section: Section) -> str:
    """The section's outcome, and its figures in columns."""
    verdict = "WRONG" if section.wrong else "ok"
    counts = f"{section.checks} checks, {len(section.wrong)} wrong, {len(section.skipped)} skipped"
    lines = [f"{section.name}: {verdict}, {counts}, {section.seconds:.0f} s"]
    for row in section.figures:
        name, *cells = row.values()
        shown = "".join(
            f"{_cell(key, cell):>24}" for key, cell in zip([*row][1:], cells, strict=True)
        )
        lines.append(f"  {name!s:44}{shown}")
    return "\n".join(lines)


def _cell(key: str, value: object) -> str:
    return f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
