"""The artifact's measures of a run, on what clients saw: fair_bench/plot/visualize.py there.

A finished request's service is its cost, spread evenly from its first token to its last. A client's
rate at a tick is its service in a window around it, and its demand what it sent in that window.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from engine.sim.queues import FairnessSample
from engine.sim.trace import Trace
from fairness.types import Prices

Vector = np.ndarray[Any, np.dtype[np.float64]]

WINDOW_S, WARM_UP_S, MEASURED_S, TICKS = 60.0, 30.0, 600.0, 20
_UNIT = 1_000.0


@dataclass(frozen=True, slots=True)
class Served:
    """One client's finished requests: when they came, began and ended, and what they cost."""

    arrived: Vector
    began: Vector
    ended: Vector
    units: Vector

    def service(self, since: Vector, until: Vector) -> Vector:
        """Units served in each of these intervals."""
        overlap = np.minimum(until[:, None], self.ended) - np.maximum(since[:, None], self.began)
        share = np.clip(overlap, 0, None) / (self.ended - self.began)
        return np.asarray(share @ self.units, float)

    def demand(self, since: Vector, until: Vector) -> Vector:
        """Units sent in each of these intervals."""
        sent = (since[:, None] <= self.arrived) & (self.arrived <= until[:, None])
        return np.asarray(sent @ self.units, float)


def served(trace: Trace, prices: Prices | None = None) -> dict[str, Served]:
    """The finished requests by client. A request of a single token began when it ended: no service.

    Prices are per token in milli-units; cached prompt tokens count in full.
    """
    price = prices or Prices()
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    for one in trace.jobs.values():
        began = one.token_times[0] if one.token_times else one.arrived
        mine = rows.setdefault(one.job.tenant, [])
        if one.finished is not None and one.finished > began:
            cost = price.uncached * one.job.num_prompt_tokens + price.output * one.job.answer.length
            mine.append((one.arrived, began, one.finished, cost / _UNIT))
    return {name: Served(*np.array(found, float).reshape(-1, 4).T) for name, found in rows.items()}


def ticks() -> Vector:
    """The artifact's moments, but for the first, which it leaves out: each begins a window."""
    return np.arange(1.0, TICKS) * ((MEASURED_S - WARM_UP_S) / TICKS)


@dataclass(frozen=True, slots=True)
class ServiceDifference:
    """The service difference at the ticks, in units per second."""

    values: Vector

    @property
    def largest(self) -> float:
        """The maximum."""
        return float(self.values.max())

    @property
    def mean(self) -> float:
        """The mean."""
        return float(self.values.mean())

    @property
    def variance(self) -> float:
        """The variance."""
        return float(self.values.var())


def service_difference(clients: Mapping[str, Served]) -> ServiceDifference:
    """Per tick the sum, over clients, of what each lacks to the best served or to its own demand.

    That is min(largest rate - rate, |demand - rate|).
    """
    since = ticks() + WARM_UP_S - WINDOW_S / 2
    until = since + WINDOW_S
    rates = np.array([one.service(since, until) for one in clients.values()]) / WINDOW_S
    demand = np.array([one.demand(since, until) for one in clients.values()]) / WINDOW_S
    lacking = np.minimum(rates.max(axis=0) - rates, np.abs(demand - rates))
    return ServiceDifference(lacking.sum(axis=0))


def windowed(one: Served, moments: Vector) -> Vector:
    """The client's rate at these moments."""
    return one.service(moments - WINDOW_S / 2, moments + WINDOW_S / 2) / WINDOW_S


def accumulated_gap(clients: Mapping[str, Served], moments: Vector) -> Vector:
    """The largest accumulated service since the warm-up, less the smallest, at these moments."""
    since = np.full_like(moments, WARM_UP_S)
    totals = np.array([one.service(since, moments) for one in clients.values()])
    return np.asarray(np.ptp(totals, axis=0), float)


def contended_gap(samples: Sequence[FairnessSample], weights: Mapping[str, float]) -> float:
    """The most that two clients' charged service by weight drew apart, in units.

    That is over all intervals in which both were backlogged throughout.
    """
    service = {
        name: np.array([sample.service.get(name, 0) for sample in samples]) / (_UNIT * weight)
        for name, weight in weights.items()
    }
    waits = {name: np.array([name in one.backlogged for one in samples], bool) for name in weights}
    largest = 0.0
    for one, other in combinations(weights, 2):
        both = np.flatnonzero(waits[one] & waits[other])
        apart = service[one] - service[other]
        for interval in np.split(both, np.flatnonzero(np.diff(both) > 1) + 1):
            if len(interval):
                largest = max(largest, float(np.ptp(apart[interval])))
    return largest


def throughput(trace: Trace) -> float:
    """Prompt and output tokens of finished requests per second, until the last of them ended."""
    done = [one for one in trace.jobs.values() if one.finished is not None]
    tokens = sum(one.job.num_prompt_tokens + one.job.answer.length for one in done)
    return tokens / max((one.finished or 0.0 for one in done), default=1.0)


def rates(clients: Mapping[str, Served], since: float, until: float) -> list[float]:
    """Each client's units per second in an interval."""
    begin, end = np.array([since]), np.array([until])
    return [float(one.service(begin, end)[0]) / (until - since) for one in clients.values()]
