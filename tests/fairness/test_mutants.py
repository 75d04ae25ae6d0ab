"""Breaks one rule at a time; the watch must notice, and say which promise it breaks.

Each line names the history in which it shows. That the three inequalities notice is shown by first
come, first served: see `test_lives.py`.
"""

import pytest

from tests.fairness import histories_bound as bound
from tests.fairness import histories_waits as waits
from tests.fairness import mutants
from tests.fairness.checker import BrokenPromiseError
from tests.fairness.histories import watched

LIFTED = "on becoming backlogged c is at least V"
CHARGED = "all service is what was charged"
WITHIN = "a grant is within min + Z"
SPREAD = "spread is within bound"
REASON = "a miss tells its true reason"

MUTANTS = (
    (mutants.no_lift, waits.blocked_for_an_hour_with_its_clock_stopped, LIFTED),
    (mutants.blocked_is_not_idle, bound.blocked_for_long_then_unblocked, LIFTED),
    (mutants.estimate_never_settled, bound.rejoining_with_corrections_pending, CHARGED),
    (mutants.output_charged_at_the_end, bound.look_ahead_in_flight, CHARGED),
    (mutants.high_water_mark_forgotten, bound.refunds_valued_at_their_cap, CHARGED),
    (mutants.prompt_charged_twice, bound.idle_tenant_returns, CHARGED),
    (
        mutants.retry_charged_again,
        waits.restart_with_work_in_flight,
        "the prompt is charged once, at grant",
    ),
    (mutants.cancel_keeps_the_charge, waits.pinned_replica_is_lost, CHARGED),
    (
        mutants.restart_refunds_twice,
        waits.restart_with_work_in_flight,
        "service is what was charged",
    ),
    (mutants.debts_forgotten, bound.idle_tenant_returns, "a debt is not forgotten"),
    (
        mutants.weight_change_keeps_the_counter,
        bound.weight_change_with_a_large_lag,
        "a counter is what was charged by weight",
    ),
    (mutants.output_of_one_sequence_only, bound.many_sequences_in_one_request, CHARGED),
    (mutants.sequences_counted_as_one, bound.passing_with_a_whole_slack, "a grant finds credit"),
    (
        mutants.floor_ignores_refunds,
        bound.newcomer_while_a_third_tenant_is_unsettled,
        "the floor is the largest settled minimum",
    ),
    (mutants.bound_forgets_older_limits, bound.largest_refund_is_forgotten, SPREAD),
    (mutants.bound_without_slack, bound.passing_with_a_whole_slack, SPREAD),
    (mutants.bound_of_present_refunds, bound.refunds_valued_at_their_cap, SPREAD),
    (mutants.bound_without_look_ahead, bound.look_ahead_in_flight, SPREAD),
    (mutants.look_ahead_not_counted, bound.look_ahead_in_flight, "a deadline is made of its terms"),
    (mutants.largest_counter_first, bound.newcomer_while_a_third_tenant_is_unsettled, WITHIN),
    (mutants.first_come_first_served, bound.many_sequences_in_one_request, WITHIN),
    (
        mutants.concurrency_not_enforced,
        bound.blocked_for_long_then_unblocked,
        "a block is told",
    ),
    (mutants.locality_reorders_tenants, waits.locality_overtakes_k_times, WITHIN),
    (
        mutants.youngest_of_a_tenant_first,
        bound.idle_tenant_returns,
        "the longest prefix goes, or the oldest",
    ),
    (mutants.kv_not_counted, waits.misfit_is_passed_k_times_then_pinned, "a grant finds credit"),
    (
        mutants.passes_unbounded,
        waits.misfit_is_passed_k_times_then_pinned,
        "a request is passed at most K times",
    ),
    (
        mutants.overtaking_unbounded,
        waits.locality_overtakes_k_times,
        "a request is passed at most K times",
    ),
    (
        mutants.nobody_passes,
        waits.huge_request_fits_only_an_empty_replica,
        "the pool idles only when none within slack fits",
    ),
    (mutants.slack_unbounded, bound.passing_with_a_whole_slack, WITHIN),
    (
        mutants.passes_not_told,
        bound.passing_with_a_whole_slack,
        "a pass is told when it is made",
    ),
    (mutants.pin_charged_twice, waits.huge_request_fits_only_an_empty_replica, CHARGED),
    (mutants.pin_charged_at_its_dispatch, waits.hold_lets_others_go_beyond_min_and_slack, CHARGED),
    (
        mutants.second_pin_allowed,
        waits.hold_lets_others_go_beyond_min_and_slack,
        "one request is pinned at a time",
    ),
    (
        mutants.hold_ignored,
        waits.misfit_is_passed_k_times_then_pinned,
        "a held replica takes nobody else",
    ),
    (
        mutants.pinned_never_sent,
        waits.misfit_is_passed_k_times_then_pinned,
        "a pinned request that fits is dispatched",
    ),
    (
        mutants.pin_outlives_a_drain,
        waits.pinned_replica_is_lost,
        "what a lost replica was held for waits again",
    ),
    (
        mutants.urgent_budget_removed,
        waits.urgent_budget_is_exhausted,
        "an urgent grant is within its budget",
    ),
    (
        mutants.urgent_grants_not_paid_for,
        waits.urgent_budget_is_exhausted,
        "an urgent grant is within its budget",
    ),
    (mutants.urgent_lane_keeps_what_is_unused, waits.urgent_budget_is_exhausted, REASON),
    (mutants.urgent_beyond_slack, waits.urgent_lane_with_a_deep_lag, WITHIN),
    (
        mutants.no_urgent_lane,
        waits.urgent_lane_with_a_deep_lag,
        "an urgent head goes next",
    ),
    (
        mutants.youngest_deadline_first,
        waits.urgent_budget_is_exhausted,
        "the oldest deadline goes first",
    ),
    (
        mutants.misses_not_logged,
        waits.urgent_lane_with_a_deep_lag,
        "a missed deadline is told",
    ),
    (
        mutants.misses_logged_again,
        waits.urgent_lane_with_a_deep_lag,
        "nothing is told without cause",
    ),
    (mutants.misses_blamed_on_the_fit, waits.urgent_lane_with_a_deep_lag, REASON),
    (
        mutants.clock_runs_while_blocked,
        waits.blocked_for_an_hour_with_its_clock_stopped,
        "a deadline stands",
    ),
    (
        mutants.deadline_set_anew,
        bound.replica_dies_and_requests_run_elsewhere,
        "nothing is told without cause",
    ),
    (
        mutants.deadline_of_nobody_else,
        bound.newcomer_while_a_third_tenant_is_unsettled,
        "a deadline is made of its terms",
    ),
    (
        mutants.queue_without_ttl,
        waits.waiting_ends_at_the_ttl,
        "nothing waits longer than the TTL",
    ),
)


@pytest.mark.parametrize(
    ("mutant", "history", "promise"), MUTANTS, ids=[mutant.__name__ for mutant, *_ in MUTANTS]
)
def test_a_broken_rule_is_noticed(mutant, history, promise, monkeypatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(BrokenPromiseError) as broken:
        watched(history)
    assert broken.value.args[0] == promise
