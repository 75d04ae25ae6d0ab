"""A scenario: a named question with a workload, a machine and an answer in tables and plots."""

from collections.abc import Callable
from dataclasses import dataclass

from numpy.random import Generator, default_rng

from engine.sim.result import Result


@dataclass(frozen=True, slots=True)
class Scenario:
    """`summary` is its line in lists. `run` draws all that is random from the generator it gets.

    `plots`: whether its results have plots, so that nobody runs it for none.
    """

    name: str
    summary: str
    run: Callable[[Generator], Result]
    plots: bool = False

    def simulate(self, seed: int) -> Result:
        """The result for a seed: the same every time."""
        result = self.run(default_rng(seed))
        if bool(result.plots) != self.plots:
            raise ValueError(f"the scenario {self.name!r} does not do as it says of its plots")
        return result
