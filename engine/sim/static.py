"""Batching by request, the control for batching by step: a batch ends when its longest answer does.

There is nothing of ours to run here, so this is arithmetic over lengths. Time counts decode steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator


@dataclass(frozen=True, slots=True)
class StaticRun:
    """Steps from the first arrival to the end, slot-steps that made a token, waits per request."""

    steps: float
    useful: int
    slots: int
    waits: tuple[float, ...]

    @property
    def utilisation(self) -> float:
        """The share of slot-steps that made a token."""
        return self.useful / (self.slots * self.steps)


def serve(lengths: Sequence[int], slots: int, arrivals: Sequence[float] | None = None) -> StaticRun:
    """Serve in order of arrival; a batch is whoever waits, at most `slots`, when one can begin.

    Without arrivals everybody is there at the start.
    """
    when = arrivals if arrivals is not None else [0.0] * len(lengths)
    now, index = 0.0, 0
    waits: list[float] = []
    while index < len(lengths):
        now = max(now, when[index])
        stop = index
        while stop < len(lengths) and stop < index + slots and when[stop] <= now:
            waits.append(now - when[stop])
            stop += 1
        now += max(lengths[index:stop])
        index = stop
    return StaticRun(now - when[0], sum(lengths), slots, tuple(waits))


def exponential_utilisation(rng: Generator, slots: int, num_batches: int, mean: float) -> float:
    """Useful share of full batches whose lengths are exponential, by drawing many batches."""
    lengths = rng.exponential(mean, (num_batches, slots))
    return float(lengths.sum() / (slots * lengths.max(axis=1).sum()))


def harmonic(count: int) -> float:
    """H_n: the expected maximum of n exponential lengths, in units of their mean."""
    return float(np.reciprocal(np.arange(1, count + 1, dtype=float)).sum())
