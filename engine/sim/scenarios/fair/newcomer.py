"""A tenant is served alone until its queue is empty; then it and a newcomer ask for too much.

The first has been charged for a minute of the whole machine. Counters that nobody lifts give the
newcomer as much before the first is served again, and so did the artifact of the Virtual Token
Counter paper when the queue was empty: it lifted a newcomer only to others who waited.
"""

from numpy.random import Generator

from engine.sim.result import Result
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.compare import (
    TERMS,
    Play,
    Setting,
    play,
    plays,
    result,
    traffic,
    usual,
)
from fairness.controls import LcfPolicy

SECONDS, RATE = 135.0, 9.0
NO_LIFT = "without the lift"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Alone in the first four ninths, nobody in the next, then both."""
    alone, idle = 4 * seconds / 9, 5 * seconds / 9
    clients = [
        usual("first", RATE / 2, ends=alone),
        usual("first", RATE, begins=idle),
        usual("newcomer", RATE, begins=idle),
    ]
    terms = {"first": TERMS, "newcomer": TERMS}
    return Setting(terms, traffic(rng, clients, seconds), seconds, since=idle)


def without_rule(of: Setting) -> dict[str, Play]:
    """One whose counters are not lifted."""
    return {NO_LIFT: play(of, LcfPolicy())}


def _run(rng: Generator) -> Result:
    return result("a newcomer to an empty queue", plays(setting(rng), without_rule))


SCENARIOS = (
    Scenario("fairness/newcomer", "a newcomer after another was served alone", _run, plots=True),
)
