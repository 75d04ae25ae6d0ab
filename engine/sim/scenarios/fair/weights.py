"""Four tenants of weights 1 to 4 who all ask for the same, each for more than the machine does.

With loads in proportion to the weights, first come, first served would give the same shares: only
equal loads tell the weights from the demand.
"""

from collections.abc import Mapping
from dataclasses import replace

from numpy.random import Generator

from engine.sim.result import Cell, Result, Table
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.compare import (
    TERMS,
    Play,
    Setting,
    fair_and_fcfs,
    result,
    traffic,
    usual,
)

SECONDS, RATE = 90.0, 4.5
WEIGHTS: Mapping[str, int] = {"one": 1, "two": 2, "three": 3, "four": 4}


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Everybody asks for about eight tenths of what the machine can do."""
    terms = {name: replace(TERMS, weight_milli=1_000 * weight) for name, weight in WEIGHTS.items()}
    clients = [usual(name, RATE) for name in WEIGHTS]
    return Setting(terms, traffic(rng, clients, seconds), seconds, since=seconds / 9)


def weights_table(plays: Mapping[str, Play]) -> Table:
    """Shares beside weights."""
    total = sum(WEIGHTS.values())
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, 100 * weight / total, *(100 * run.shares[name] for run in plays.values()))
        for name, weight in WEIGHTS.items()
    )
    return Table("share of the service (%)", ("tenant", "by weight", *plays), rows)


def _run(rng: Generator) -> Result:
    plays = fair_and_fcfs(setting(rng))
    return result("weights 1 to 4, equal loads", plays, weights_table(plays))


SCENARIOS = (
    Scenario("fairness/equal-load-weights", "weights 1 to 4 with equal loads", _run, plots=True),
)
