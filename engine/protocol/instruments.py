"""Counts for hot paths: plain numbers and fixed bucket arrays, free of locks and of OpenTelemetry.

A child (one series) has one writing thread; any thread may read. Exporters read everything
through `Registry.families`; nothing is copied until then.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

LabelValues = tuple[str, ...]
Sample = tuple[Sequence[str], float]
SampleSource = Callable[[], Iterable[Sample]]

OTHER: Final = "other"


class _Number:
    """One series of a single number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Counter(_Number):
    """A number that only rises."""

    __slots__ = ()

    def inc(self, n: float = 1) -> None:
        """Add `n`, which must not be negative."""
        self.value += n


class Gauge(_Number):
    """A number that is set, or moved by steps."""

    __slots__ = ()

    def set(self, value: float) -> None:
        """Say what the number is now."""
        self.value = value

    def inc(self, n: float = 1) -> None:
        """Move it by `n`, down when negative."""
        self.value += n


class Histogram:
    """Counts of observations per bucket, each up to and including its bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Child = TypeVar("Child")
Number = TypeVar("Number", bound=_Number)


class Family(Generic[Child]):
    """All series of one metric. One without labels has its only child from the start."""

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str], unit: str, make: Callable[[], Child]
    ) -> None:
        self.name = name
        self.help = help_text
        self.label_names = tuple(labels)
        self.unit = unit
        self._make = make
        self._children: dict[LabelValues, Child] = {}
        if not self.label_names:
            self.labels()

    def labels(self, *values: str) -> Child:
        """The child with these label values, made on first use. Raises ValueError on a miscount."""
        child = self._children.get(values)
        if child is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} takes labels {self.label_names}, got {values}")
            child = self._children.setdefault(values, self._make())
        return child

    def forget(self, *values: str) -> None:
        """Drop a series whose subject is gone; it starts anew when it comes back."""
        self._children.pop(values, None)

    def children(self) -> list[tuple[LabelValues, Child]]:
        """Every child, as of now, safe to walk while others are made."""
        return list(self._children.items())


class _NumberFamily(Family[Number]):
    """A metric of single numbers, which are its children's or are kept elsewhere."""

    _source: SampleSource | None = None

    def callback(self, source: SampleSource) -> None:
        """Read all series from `source` at each collection, in place of children."""
        self._source = source

    def samples(self) -> Iterator[Sample]:
        """Label values and number of every series."""
        if self._source is not None:
            yield from self._source()
            return
        for values, child in self.children():
            yield values, child.value


class CounterFamily(_NumberFamily[Counter]):
    """A metric of counters; `callback` names totals that are kept elsewhere."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], unit: str) -> None:
        super().__init__(name, help_text, labels, unit, Counter)


class GaugeFamily(_NumberFamily[Gauge]):
    """A metric of gauges; `callback` names numbers that are kept elsewhere."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str], unit: str) -> None:
        super().__init__(name, help_text, labels, unit, Gauge)


class HistogramFamily(Family[Histogram]):
    """A metric of distributions over `buckets`."""

    def __init__(
        self, name: str, help_text: str, buckets: Sequence[float], labels: Sequence[str], unit: str
    ) -> None:
        self.buckets = tuple(buckets)
        if sorted(set(self.buckets)) != list(self.buckets):
            raise ValueError(f"the buckets of {name} do not rise")
        super().__init__(name, help_text, labels, unit, lambda: Histogram(self.buckets))


AnyFamily = CounterFamily | GaugeFamily | HistogramFamily


class Registry:
    """One process's metrics, by name. A name is declared once; declaring it again is an error."""

    def __init__(self) -> None:
        self._families: dict[str, AnyFamily] = {}
        self._listeners: list[Callable[[AnyFamily], None]] = []

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> CounterFamily:
        """Declare a counter; its name ends in `_total`."""
        family = CounterFamily(name, help_text, labels, _unit_of(name))
        self._add(family)
        return family

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> GaugeFamily:
        """Declare a gauge."""
        family = GaugeFamily(name, help_text, labels, _unit_of(name))
        self._add(family)
        return family

    def histogram(
        self,
        name: str,
        help_text: str,
        buckets: Sequence[float],
        labels: Sequence[str] = (),
        unit: str = "",
    ) -> HistogramFamily:
        """Declare a histogram; `buckets` are rising upper bounds, the infinite one left out."""
        family = HistogramFamily(name, help_text, buckets, labels, unit or _unit_of(name))
        self._add(family)
        return family

    def families(self) -> list[AnyFamily]:
        """Every declared metric."""
        return list(self._families.values())

    def subscribe(self, listener: Callable[[AnyFamily], None]) -> None:
        """Call `listener` with every family there is, and with each later one as it is declared."""
        self._listeners.append(listener)
        for family in self.families():
            listener(family)

    def _add(self, family: AnyFamily) -> None:
        if family.name in self._families:
            raise ValueError(f"metric {family.name} is declared twice")
        self._families[family.name] = family
        for listener in self._listeners:
            listener(family)


def _unit_of(name: str) -> str:
    """UCUM unit that OTLP states; chosen so that no exporter adds a suffix to the name."""
    return "s" if name.endswith("_seconds") else ""


class LabelCap:
    """Keeps a label's values few: the first `limit` keep their names, later ones are `other`."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def label(self, value: str) -> str:
        """`value` itself while there is room or it is known, else `other`."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value
