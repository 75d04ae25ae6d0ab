"""The scenarios by name. To add one, write a `Scenario` in a module here and list it below."""

from collections.abc import Mapping
from types import MappingProxyType

from engine.sim.scenario import Scenario
from engine.sim.scenarios import (
    artifact,
    batching,
    chat,
    fair,
    fairness,
    memory,
    prefill,
    prefix,
    sharing,
    thrash,
)

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        scenario.name: scenario
        for module in (
            batching,
            memory,
            sharing,
            prefill,
            prefix,
            thrash,
            fairness,
            fair,
            artifact,
            chat,
        )
        for scenario in module.SCENARIOS
    }
)
