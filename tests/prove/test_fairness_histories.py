"""A million grants of random histories, and the named ones, under the watch of the whole contract.

Every grant, charge, pass, pin, miss and stop of every history is checked, and the inequalities
after every event; what the dispatcher shows of itself is compared after every 50th event, in the
first lives after every one. A history that breaks a promise is shrunk to the events that matter.
"""

import json
import os
import time

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fairness.policy import FcfsPolicy
from tests.fairness.histories import HISTORIES, watched
from tests.fairness.lives import FAIR, many
from tests.fairness.test_machine import PoolLife

pytestmark = [pytest.mark.prove, pytest.mark.timeout(5400)]

GRANTS = int(os.environ.get("EVENHAND_PROVE_HISTORIES_GRANTS", "1000000"))
EXAMPLES = int(os.environ.get("EVENHAND_PROVE_HISTORIES_EXAMPLES", "600"))
A_LIFE = 1_000
CLOSELY = 100
CONTROL = 5
"""First come, first served lives through a part of each history: its bounds break early."""


def test_every_promise_holds_over_a_million_grants():
    started = time.perf_counter()
    lives = many(range(CLOSELY), A_LIFE // 10)
    for history in HISTORIES:
        lives.note(watched(history).ratios)
    seed = CLOSELY
    while lives.grants < GRANTS:
        lives.add(seed, A_LIFE, every=50)
        seed += 1
    fair_s = time.perf_counter() - started
    control = many(range(CLOSELY, seed), A_LIFE // CONTROL, FcfsPolicy, every=50)
    print(
        json.dumps(
            {
                "claim": "every promise over random and named histories",
                "grants": lives.grants,
                "histories": seed + len(HISTORIES),
                "observed_to_bound": rounded(lives.ratios),
                "fcfs_grants": control.grants,
                "fcfs_observed_to_bound": rounded({what: control.ratios[what] for what in FAIR}),
                "occasions": dict(sorted(lives.occasions.items())),
                "seconds": round(fair_s),
                "fcfs_seconds": round(time.perf_counter() - started - fair_s),
            }
        )
    )
    assert all(ratio <= 1 for ratio in lives.ratios.values())
    assert all(control.ratios[what] > 1 for what in FAIR)


def test_dispatcher_twin_and_watch_agree_in_stateful_lives():
    """The machine of `make test`, longer and more often: Hypothesis draws it and shrinks it."""
    longer = settings(PoolLife.TestCase.settings, max_examples=EXAMPLES, stateful_step_count=120)
    started = time.perf_counter()
    run_state_machine_as_test(PoolLife, settings=longer)
    seconds = round(time.perf_counter() - started)
    print(
        json.dumps(
            {"claim": "twin, watch and dispatcher agree", "examples": EXAMPLES, "s": seconds}
        )
    )


def rounded(ratios):
    return {what: round(ratio, 3) for what, ratio in sorted(ratios.items())}
