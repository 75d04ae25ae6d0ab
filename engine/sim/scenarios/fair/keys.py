"""A tenant that spreads its load over eleven keys, among three who use one each.

Whoever counts by key gives such a tenant eleven shares. Here an account is a tenant's, named by the
authenticated key: how many keys it has makes no difference.
"""

from dataclasses import replace

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
from fairness.policy import VtcPolicy

SECONDS, RATE, NUM_KEYS = 90.0, 4.0, 11
ROTATOR, HONEST = "rotator", ("one", "two", "three")
BY_KEY = "fair by key"


def setting(rng: Generator, seconds: float = SECONDS) -> Setting:
    """Everybody wants more than a quarter, the rotator four times as much as the others."""
    clients = [usual(ROTATOR, 4 * RATE), *(usual(name, RATE) for name in HONEST)]
    terms = dict.fromkeys((ROTATOR, *HONEST), TERMS)
    return Setting(terms, traffic(rng, clients, seconds), seconds, since=seconds / 9)


def by_key(of: Setting) -> Setting:
    """The same requests where each of the rotator's keys is an account."""
    keys = [f"{ROTATOR}/{number}" for number in range(NUM_KEYS)]
    sent = [
        replace(arrival, job=replace(arrival.job, tenant=keys[number % NUM_KEYS]))
        if arrival.job.tenant == ROTATOR
        else arrival
        for number, arrival in enumerate(of.traffic)
    ]
    terms = dict.fromkeys((*keys, *HONEST), TERMS)
    return replace(of, traffic=sent, terms=terms, owner=lambda key: key.partition("/")[0])


def without_rule(of: Setting) -> dict[str, Play]:
    """Fair sharing between keys."""
    return {BY_KEY: play(by_key(of), VtcPolicy())}


def _run(rng: Generator) -> Result:
    return result(f"one of four tenants rotates {NUM_KEYS} keys", plays(setting(rng), without_rule))


SCENARIOS = (Scenario("fairness/keys", "a tenant that rotates its keys", _run, plots=True),)
