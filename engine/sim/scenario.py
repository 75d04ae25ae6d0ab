"""A scenario: a named question with a workload, a machine and an answer in tables and plots."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator, default_rng

from engine.sim.result import Result


@dataclass(frozen=True, slots=True)
class Scenario:
    """`summary` is its line in lists. `run` draws all that is random from the generator it gets."""

    name: str
    summary: str
    run: Callable[[Generator], Result]

    def simulate(self, seed: int) -> Result:
        """The result for a seed: the same every time."""
        return self.run(default_rng(seed))
