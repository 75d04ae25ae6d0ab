"""What each fairness scenario must show, in short versions; `evenhand simulate` runs them whole."""

import pytest
from numpy.random import default_rng

from engine.sim.scenarios import SCENARIOS
from engine.sim.scenarios.fair import (
    blocked,
    cancels,
    compare,
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
from engine.sim.scenarios.fair.compare import FAIR, FCFS, fair_and_fcfs
from fairness import events
from fairness.policy import VtcPolicy
from fairness.types import MissReason


def play(scenario, length):
    """The fair queue, and the one without the rule."""
    setting = scenario.setting(default_rng(0), length)
    return {FAIR: compare.play(setting, VtcPolicy())} | scenario.without_rule(setting)


def in_bound(*runs):
    return all(run.worst_of_bound <= 1 for run in runs)


def test_equal_loads_are_served_by_weight():
    found = fair_and_fcfs(weights.setting(default_rng(0), 30.0))
    fair, fcfs = found[FAIR], found[FCFS]
    for name, weight in weights.WEIGHTS.items():
        assert fair.shares[name] == pytest.approx(weight / 10, abs=0.01)
    assert fair.jain > 0.995
    assert fcfs.jain < 0.9
    assert fcfs.difference.largest > 5 * fair.difference.largest
    assert fair.units_per_s > 0.97 * fcfs.units_per_s
    assert in_bound(fair)


def test_a_newcomer_shares_at_once_and_gets_nothing_for_others_past():
    found = play(newcomer, 45.0)
    assert found[FAIR].shares["newcomer"] == pytest.approx(0.5, abs=0.02)
    assert found[newcomer.NO_LIFT].shares["newcomer"] > 0.9
    assert in_bound(found[FAIR])


def test_an_estimate_that_is_never_settled_gives_most_to_long_answers():
    found = play(estimate, 30.0)
    assert found[FAIR].shares["essays"] == pytest.approx(0.5, abs=0.02)
    assert found[estimate.UNSETTLED].shares["essays"] > 0.86
    assert in_bound(found[FAIR])


def test_a_tenth_of_the_deadlines_neither_starves_nor_feeds_the_heavy_tenant():
    long, short = (deadlines.setting(default_rng(1), seconds) for seconds in (240.0, 120.0))
    natural = deadlines.natural_s(compare.play(short, VtcPolicy()))
    fair = compare.play(deadlines.at_a_tenth(long, natural), VtcPolicy())
    forced = deadlines.unbudgeted(deadlines.at_a_tenth(short, natural))
    free = compare.play(forced, VtcPolicy())
    assert deadlines.urgent_share(fair) <= 0.05
    assert fair.shares[deadlines.HEAVY] == pytest.approx(0.25, abs=0.02)
    assert fair.jain >= 0.97
    assert deadlines.wrongly_logged(fair) == set()
    assert sum(deadlines.missed(fair, reason) for reason in MissReason) > 10
    assert deadlines.oldest_wait(fair) <= fair.setting.pool.ttl_s + deadlines.STEP_S
    assert free.jain < 0.5
    assert in_bound(fair)


def test_a_tenant_gains_nothing_by_rotating_keys():
    found = play(keys, 27.0)
    assert found[FAIR].shares[keys.ROTATOR] == pytest.approx(0.25, abs=0.03)
    assert found[keys.BY_KEY].shares[keys.ROTATOR] > 0.7
    assert in_bound(found[FAIR])


def test_a_tenant_that_leaves_at_the_first_token_pays_for_its_prompts():
    found = play(cancels, 24.0)
    assert found[FAIR].shares[cancels.ABUSER] == pytest.approx(0.5, abs=0.02)
    assert len(found[FAIR].ends.left) > 50
    assert found[cancels.REFUNDED].shares[cancels.ABUSER] > 0.85
    assert in_bound(found[FAIR])


def test_a_stream_silent_for_five_minutes_keeps_its_place():
    found = play(silence, 900.0)
    fair, reaped = found[FAIR], found[silence.REAPED]
    assert silence.longest_silence(fair) > 300
    assert silence.most_waiting_in_engine(fair) <= 2
    assert silence.most_waiting_in_engine(reaped) > 4
    waits = {run: run_waits(found[run], silence.CHATTER) for run in (FAIR, silence.REAPED)}
    assert max(waits[silence.REAPED]) > 5 * max(waits[FAIR])


def run_waits(run, owner):
    return [job.token_times[0] - job.arrived for job in run.jobs[owner] if job.token_times]


def test_a_huge_request_is_passed_eight_times_and_then_held_a_replica_for():
    found = play(huge, 36.0)
    fair = found[FAIR]
    assert huge.most_passed(fair) == 8
    assert len(fair.effects(events.Pinned)) == len(fair.effects(events.Dispatched)) > 0
    assert all(job.token_times for job in huge.huge_jobs(fair))
    assert not any(job.token_times for job in huge.huge_jobs(found[huge.WITHOUT_LIMIT]))
    assert fair.units_per_s > found[huge.NEVER_PASSED].units_per_s
    assert in_bound(fair)


def test_what_a_preempting_engine_repeats_is_charged_to_nobody():
    found, works = preemption.plays(preemption.setting(default_rng(0), 45.0))
    for tenant in preemption.ANSWERS:
        run = found[FAIR]
        charged = run.gateway.samples[-1].service[tenant] / 1_000
        received = run.delivered[tenant].between(0.0, run.setting.seconds)
        # What is charged and not yet received are prompts of requests that have no token yet.
        assert 0 <= charged - received <= preemption.SLOTS * 384
    assert works[FAIR].repeated["long"] > 1_000
    assert found[FAIR].shares["long"] == pytest.approx(0.5, abs=0.05)
    assert found[preemption.REPEATS].shares["long"] < found[FAIR].shares["long"] - 0.03
    assert in_bound(found[FAIR])


def test_cached_prompts_go_first_only_in_their_own_tenants_queue():
    found = play(prefixes, 24.0)
    fair = found[FAIR]
    assert fair.shares[prefixes.OTHER] == pytest.approx(0.5, abs=0.02)
    assert fair.report.hit_rate > 0.4
    assert 0 < prefixes.most_overtaken(fair) <= 8
    assert found[prefixes.PREFIX_FIRST].shares[prefixes.OTHER] < 0.05
    assert in_bound(fair)


def test_an_hour_of_being_blocked_earns_nothing():
    found = play(blocked, 1_000.0)
    fair = found[FAIR]
    assert fair.shares[blocked.BLOCKED] == pytest.approx(1 / 3, abs=0.06)
    assert found[blocked.NO_LIFT].shares[blocked.BLOCKED] > 0.8
    assert blocked.missed_while_blocked(fair) == 0
    lifts = [
        lifted.now for lifted in fair.effects(events.Lifted) if lifted.tenant == blocked.BLOCKED
    ]
    assert min(lifts) >= 1_000.0
    assert in_bound(fair)


def test_a_crash_charges_nobody_twice():
    found = play(crash, 36.0)
    fair, again = found[FAIR], found[crash.CHARGED_AGAIN]
    assert len(fair.ends.cut) > 8
    assert len(crash.granted_again(fair)) == 4
    assert all(grant.charge_milli == 0 for grant in crash.granted_again(fair))
    assert all(grant.charge_milli > 0 for grant in crash.granted_again(again))
    assert crash.granted_again(again)
    for tenant in crash.RATES:
        charged = fair.gateway.samples[-1].service[tenant] / 1_000
        received = fair.delivered[tenant].between(0.0, fair.setting.seconds)
        assert 0 <= charged - received <= 2 * 20 * 512
    assert fair.jain > 0.99
    assert in_bound(fair)


def test_every_scenario_is_listed_and_draws_plots():
    listed = [scenario for name, scenario in SCENARIOS.items() if name.startswith("fairness/")]
    assert {
        f"fairness/{name}"
        for name in (
            *("equal-load-weights", "newcomer", "estimate", "deadlines", "keys", "cancels"),
            *("silence", "huge", "preemption", "prefixes", "blocked", "crash"),
        )
    } <= {scenario.name for scenario in listed}
    assert all(scenario.plots for scenario in listed)
