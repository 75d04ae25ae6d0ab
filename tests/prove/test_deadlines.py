"""Overload with every deadline at a tenth: the urgent lane changes no share, and hides no miss."""

import json

import pytest
from numpy.random import default_rng

from engine.sim.scenarios.fair import deadlines
from engine.sim.scenarios.fair.compare import FAIR, FCFS
from fairness import events
from fairness.types import MissReason

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

SECONDS, SEEDS = 900.0, (0, 1, 2)


def figures(run):
    return {
        "urgent_share": deadlines.urgent_share(run),
        "heavy_share": run.shares[deadlines.HEAVY],
        "jain": run.jain,
        "missed": {reason: deadlines.missed(run, reason) for reason in MissReason},
        "wrongly_logged": len(deadlines.wrongly_logged(run)),
        "longest_wait_s": deadlines.oldest_wait(run),
        "worst_of_bound": run.worst_of_bound,
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_deadlines_at_a_tenth(seed):
    found = deadlines.plays(deadlines.setting(default_rng(seed), SECONDS))
    fair, free = found[FAIR], found[deadlines.UNBUDGETED]
    shown = {"tenth": FAIR, "fcfs": FCFS, "no_budget_no_slack": deadlines.UNBUDGETED}
    line = {"claim": "deadlines at a tenth", "seed": seed, "seconds": SECONDS}
    line["deadline_s"] = fair.setting.pool.t_max_s
    print(json.dumps(line | {name: figures(found[queue]) for name, queue in shown.items()}))
    assert deadlines.urgent_share(fair) <= 0.05
    assert fair.shares[deadlines.HEAVY] == pytest.approx(0.25, abs=0.02)
    assert fair.jain >= 0.97
    assert deadlines.wrongly_logged(fair) == set()
    assert len(fair.effects(events.Missed)) > 50
    # Whoever is not granted within its TTL expires with the event that comes next.
    assert deadlines.oldest_wait(fair) <= fair.setting.pool.ttl_s + deadlines.STEP_S
    assert fair.worst_of_bound <= 1
    assert free.jain < 0.5
