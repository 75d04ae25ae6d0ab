"""What an audit of a pool's log found: breaches, and for every window each tenant's figures.

Times are seconds since 1970 by the log's own clock. Amounts are milli-units; a figure with `_norm`
is divided by the tenant's weight, as counters are.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from fairness.events import Event
from fairness.replay import described
from fairness.types import MissReason, TenantId

KEPT_BREACHES = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event is: `line` counts from 1 in its segment, `sequence` in the whole log.

    `event` is the event, or what is in its stead.
    """

    segment: int
    line: int
    sequence: int | None
    event: Event | str
    at: float | None

    @property
    def words(self) -> str:
        """The event in a few words."""
        return self.event if isinstance(self.event, str) else described(self.event)

    def __str__(self) -> str:
        """As people are told."""
        number = "" if self.sequence is None else f"event {self.sequence}, "
        return f"{number}segment {self.segment}, line {self.line}: {self.words}"


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that the log may not hold; `check` is which promise or rule it breaks."""

    check: str
    place: Place
    problem: str


@dataclass(frozen=True, slots=True)
class Gap:
    """How far a tenant got ahead of another while both were backlogged throughout."""

    gap_norm: int = 0
    bound_norm: int = 0
    other: TenantId | None = None

    @property
    def ratio(self) -> float:
        """The gap as a part of its bound."""
        return self.gap_norm / self.bound_norm if self.bound_norm else 0.0


@dataclass(frozen=True, slots=True)
class HeadAge:
    """How long a request headed its queue, its tenant not blocked, and how long it was to."""

    age_s: float = 0.0
    allowed_s: float = 0.0
    request: str | None = None

    @property
    def ratio(self) -> float:
        """The age as a part of what was allowed."""
        return self.age_s / self.allowed_s if self.allowed_s else 0.0


@dataclass(slots=True)
class TenantTally:
    """One tenant in one window. `service` is net of refunds, `refunds` what was given back."""

    weight_milli: int = 1_000
    backlogged_s: float = 0.0
    intervals: int = 0
    grants: int = 0
    service: int = 0
    service_norm: float = 0.0
    refunds: int = 0
    urgent_grants: int = 0
    urgent: int = 0
    passes: int = 0
    overtakes: int = 0
    expired: int = 0
    refused: int = 0
    worst_gap: Gap = Gap()
    worst_head: HeadAge = HeadAge()
    missed: dict[MissReason, int] = field(default_factory=dict)

    def add(self, later: "TenantTally") -> None:
        """Take the figures of a later window in."""
        self.weight_milli = later.weight_milli
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for reason, count in later.missed.items():
            self.missed[reason] = self.missed.get(reason, 0) + count
        self.passes = max(self.passes, later.passes)
        self.overtakes = max(self.overtakes, later.overtakes)
        self.worst_gap = max(self.worst_gap, later.worst_gap, key=lambda gap: gap.ratio)
        self.worst_head = max(self.worst_head, later.worst_head, key=lambda age: age.ratio)


_SUMMED = (
    *("backlogged_s", "intervals", "grants", "service", "service_norm", "refunds"),
    *("urgent_grants", "urgent", "expired", "refused"),
)


@dataclass(slots=True)
class Window:
    """Figures of a stretch of time; `spread_norm` and `bound_norm` are of the moment nearest it."""

    start: float
    end: float
    tenants: dict[TenantId, TenantTally] = field(default_factory=dict)
    spread_norm: int = 0
    bound_norm: int = 0
    service: int = 0
    urgent: int = 0
    inputs: int = 0

    def note_spread(self, spread: int, bound: int) -> None:
        """Keep a spread if it is nearer its bound than the one kept."""
        if bound and spread * self.bound_norm >= self.spread_norm * bound:
            self.spread_norm, self.bound_norm = spread, bound

    @property
    def urgent_share(self) -> float:
        """The urgent lane's part of the window's service."""
        return self.urgent / self.service if self.service > 0 else 0.0


def merged(windows: Iterable[Window]) -> Window | None:
    """Many windows as one; None of none."""
    total: Window | None = None
    for window in windows:
        if total is None:
            total = Window(window.start, window.end)
        total.end = window.end
        total.inputs += window.inputs
        total.service += window.service
        total.urgent += window.urgent
        total.note_spread(window.spread_norm, window.bound_norm)
        for name, tally in window.tenants.items():
            total.tenants.setdefault(name, TenantTally()).add(tally)
    return total


@dataclass(frozen=True, slots=True)
class Degraded:
    """A time for which something is missing that the promises rest on."""

    start: float
    end: float | None
    reason: str


@dataclass(slots=True)
class Report:
    """All of it. `num_breaches` counts also those beyond the first `KEPT_BREACHES`."""

    pool: str = ""
    policy: str = ""
    segments: list[int] = field(default_factory=list)
    events: int = 0
    first_sequence: int | None = None
    last_sequence: int | None = None
    incarnations: int = 0
    max_passes: int = 0
    urgent_share_allowed: float = 0.0
    largest_request: int = 0
    open_end: bool = False
    windows: list[Window] = field(default_factory=list)
    degraded: list[Degraded] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)
    num_breaches: int = 0

    @property
    def kept(self) -> bool:
        """Whether every promise was kept, and every event is in its place."""
        return self.num_breaches == 0

    def breach(self, check: str, place: Place, problem: str) -> None:
        """Note a breach."""
        self.num_breaches += 1
        if len(self.breaches) < KEPT_BREACHES:
            self.breaches.append(Breach(check, place, problem))

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {
            "kept": self.kept,
            "breaches": [
                {
                    "check": one.check,
                    "problem": one.problem,
                    "segment": one.place.segment,
                    "line": one.place.line,
                    "sequence": one.place.sequence,
                    "event": one.place.words,
                    "at": one.place.at,
                }
                for one in self.breaches
            ],
        }
