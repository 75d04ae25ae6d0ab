"""Two tenants whose answers are 512 and 32 tokens long, and a queue that charges 128 for each.

An estimate is harmless when it is settled by what came. Never settled, it says that both were
served alike while one has most of the machine.
"""

from dataclasses import replace

from numpy.random import Generator

from engine.sim.result import Result
from engine.sim.scenario import Scenario
from engine.sim.scenarios.fair.broken import UnsettledEstimate
from engine.sim.scenarios.fair.compare import (
    TERMS,
    Client,
    Play,
    Setting,
    play,
    plays,
    result,
    traffic,
)
from engine.sim.workload import Fixed, JobKind

SECONDS = 120.0
ANSWERS, RATES = {"essays": 512, "words": 32}, {"essays": 3.0, "words": 14.0}
PROMPT, GUESS = 64, 128
UNSETTLED = "estimate never settled"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Both want far more than half."""
    clients = [
        Client(JobKind(Fixed(PROMPT), Fixed(answer), tenant=name, max_tokens=512), RATES[name])
        for name, answer in ANSWERS.items()
    ]
    terms = dict.fromkeys(ANSWERS, replace(TERMS, max_output_tokens=512))
    return Setting(terms, traffic(rng, clients, seconds), seconds, since=seconds / 6)


def without_rule(of: Setting) -> dict[str, Play]:
    """One that charges the guess for good."""
    return {UNSETTLED: play(of, UnsettledEstimate(GUESS))}


def _run(rng: Generator) -> Result:
    return result("answers of 512 and 32 tokens", plays(setting(rng), without_rule))


SCENARIOS = (
    Scenario(
        "fairness/estimate", "an estimate of answers, settled and never settled", _run, plots=True
    ),
)
