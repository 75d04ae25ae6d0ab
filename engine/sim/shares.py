"""How evenly tenants were served: what clients received, between tenants that wait together.

Service is what was delivered: a prompt counts with its first token, cached tokens at their price,
and every output token when it arrives. So it is the same thing under every policy, whatever that
policy charges. The service difference at a moment is the largest, over pairs of tenants that are
backlogged then, of the difference of their normalised service since both became so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from engine.sim.job import Job
from engine.sim.queues import FairnessSample
from engine.sim.report import Quantiles
from engine.sim.trace import JobTrace, Trace
from fairness.cost import output_cost, prompt_cost
from fairness.metrics import jain
from fairness.types import Prices

Vector = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Places = np.ndarray[Any, np.dtype[np.int64]]
Whose = Callable[[Job], str]
_UNIT = 1_000.0  # milli-units in a service unit


@dataclass(frozen=True, slots=True)
class Delivered:
    """One tenant's service: units that arrived at ascending times, and their running sum."""

    when: Vector
    total: Vector

    @classmethod
    def of(cls, jobs: Sequence[JobTrace], prices: Prices) -> "Delivered":
        """What these jobs delivered."""
        when = [np.empty(0)]
        units = [np.empty(0)]
        for job in jobs:
            if job.token_times:
                when.append(np.frombuffer(job.token_times))
                each = np.full(len(job.token_times), output_cost(prices, 1) / _UNIT)
                prompt, cached = job.job.num_prompt_tokens, job.num_cached_tokens
                each[0] += prompt_cost(prices, prompt, cached) / _UNIT
                units.append(each)
        times = np.concatenate(when)
        order = np.argsort(times, kind="stable")
        return cls(times[order], np.concatenate(units)[order].cumsum())

    def at(self, times: Vector) -> Vector:
        """The sum up to and including each of these times."""
        return np.concatenate(([0.0], self.total))[np.searchsorted(self.when, times, side="right")]

    def between(self, since: float, until: float) -> float:
        """What arrived in (since, until]."""
        first, last = self.at(np.array([since, until]))
        return float(last - first)


@dataclass(frozen=True, slots=True)
class Difference:
    """The service difference at every moment at which a pair was backlogged."""

    when: Vector
    units: Vector
    seconds: Vector

    @property
    def largest(self) -> float:
        """The maximum."""
        return float(self.units.max(initial=0.0))

    @property
    def mean(self) -> float:
        """Averaged over time."""
        return float(np.average(self.units, weights=self.seconds)) if len(self.units) else 0.0

    @property
    def variance(self) -> float:
        """Over time."""
        if not len(self.units):
            return 0.0
        return float(np.average((self.units - self.mean) ** 2, weights=self.seconds))


def difference(
    samples: Sequence[FairnessSample],
    delivered: Mapping[str, Delivered],
    weights: Mapping[str, float],
) -> Difference:
    """The service difference over a run, from its samples and every tenant's service."""
    when = np.array([sample.now for sample in samples])
    found = np.full(len(when), np.nan)
    waits = {
        name: np.array([name in sample.backlogged for sample in samples], bool)
        for name in delivered
    }
    normal = {name: one.at(when) / weights[name] for name, one in delivered.items()}
    for one, other in combinations(delivered, 2):
        both = waits[one] & waits[other]
        gap = normal[one] - normal[other]
        found = np.fmax(found, np.where(both, np.abs(gap - gap[_since(both)]), np.nan))
    some = ~np.isnan(found)
    seconds = np.diff(when, prepend=0.0)
    return Difference(when[some], found[some], seconds[some])


def _since(true: Flags) -> Places:
    """For each index, the first of the run of true values that it is in."""
    places = np.arange(len(true))
    starts = true & ~np.concatenate(([False], true[:-1]))
    return np.maximum.accumulate(np.where(starts, places, 0))


def grouped(trace: Trace, whose: Whose) -> dict[str, list[JobTrace]]:
    """The jobs by whose they are, in order of arrival."""
    found: dict[str, list[JobTrace]] = {}
    for job in trace.jobs.values():
        found.setdefault(whose(job.job), []).append(job)
    return found


def first_tokens(jobs: Sequence[JobTrace]) -> Quantiles:
    """Seconds from arrival to the first token, of those that got one."""
    return Quantiles.of(
        np.array([job.token_times[0] - job.arrived for job in jobs if job.token_times])
    )


def shares(delivered: Mapping[str, Delivered], since: float, until: float) -> dict[str, float]:
    """Each tenant's part of all that was delivered in the interval; zeros if nothing was."""
    units = {name: one.between(since, until) for name, one in delivered.items()}
    total = sum(units.values()) or 1.0
    return {name: part / total for name, part in units.items()}


def fairness_index(
    delivered: Mapping[str, Delivered], weights: Mapping[str, float], since: float, until: float
) -> float:
    """Jain's index of the tenants' normalised service in the interval."""
    return jain([one.between(since, until) / weights[name] for name, one in delivered.items()])
