"""The fairness scenarios: `evenhand simulate fairness/NAME`. List a new one's module below."""

from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair import (
    blocked,
    cancels,
    crash,
    deadlines,
    estimate,
    huge,
    keys,
    newcomer,
    preemption,
    prefixes,
    silence,
    weights,
)

SCENARIOS: tuple[Scenario, ...] = tuple(
    scenario
    for module in (
        weights,
        newcomer,
        estimate,
        deadlines,
        keys,
        cancels,
        silence,
        huge,
        preemption,
        prefixes,
        blocked,
        crash,
    )
    for scenario in module.SCENARIOS
)
