"""The VTC paper's experiments in small: workloads, measure, server, and the order of policies."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

from engine.sim.artifact import real
from engine.sim.artifact.experiment import experiment, policies
from engine.sim.artifact.measures import (
    ServiceDifference,
    accumulated_gap,
    contended_gap,
    rates,
    served,
    service_difference,
    throughput,
    ticks,
)
from engine.sim.artifact.published import RESULTS
from engine.sim.artifact.server import (
    COLD_START_S,
    STEPS_BETWEEN_ADMISSIONS,
    run,
    slots,
)
from engine.sim.artifact.workloads import SUITES, Steady, Suite, steady
from engine.sim.job import Job, Span
from engine.sim.presets import PRESETS, SLORA_A10G
from engine.sim.queues import FairnessSample
from engine.sim.scenarios.artifact import compare
from engine.sim.step_time import StepWork
from engine.sim.trace import JobTrace, Trace
from fairness.policy import VtcPolicy

# --- workloads ---------------------------------------------------------------------------------


def sent(name, seed=0):
    return SUITES[name].arrivals(default_rng(seed))


def times(arrivals, client):
    return [one.when for one in arrivals if one.job.tenant == f"client-{client:02}"]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("overload", [540, 1_080]),
        ("overload-multi", [144] * 3 + [216] * 5),
        ("overload-weighted", [288, 288, 432, 576]),
        ("overload-weighted-equal", [432] * 4),
        ("proportional", [150, 300, 900]),
        ("increase", [300, 660]),
        ("ablation-35k-512", [900, 1_800]),
        ("real", list(real.COUNTS)),
    ],
)
def test_clients_send_as_many_requests_as_published(name, counts):
    arrivals = sent(name)
    assert [len(times(arrivals, number)) for number in range(1, len(counts) + 1)] == counts
    assert len(arrivals) == sum(counts)


def test_steady_clients_keep_their_interval_and_requests_are_in_order():
    arrivals = sent("overload")
    assert np.diff(times(arrivals, 1)) == pytest.approx(1 / 1.5)
    assert np.diff(times(arrivals, 2)) == pytest.approx(1 / 3)
    when = [one.when for one in arrivals]
    assert when == sorted(when)


@pytest.mark.parametrize("name", ["on-off-less", "on-off-overload", "dist-shift"])
def test_a_client_that_is_on_and_off_is_silent_every_second_minute(name):
    until = 300 if name == "dist-shift" else 600
    minutes = {int(when // 60) for when in times(sent(name), 1) if when < until}
    assert minutes == set(range(0, until // 60, 2))
    assert {int(when // 60) for when in times(sent(name), 2)} >= set(range(until // 60))


def test_a_ramp_ends_at_ten_times_its_rate():
    ramp = times(sent("increase"), 2)
    assert sum(when < 60 for when in ramp) == pytest.approx(60 * (0.2 + 0.38) / 2, abs=2)
    assert sum(540 < when < 600 for when in ramp) == pytest.approx(60 * (1.82 + 2) / 2, abs=3)


def test_phases_follow_each_other():
    arrivals = sent("dist-shift")
    middle = [sum(330 < when < 570 for when in times(arrivals, number)) for number in (1, 2)]
    last = [sum(630 < when < 870 for when in times(arrivals, number)) for number in (1, 2)]
    assert middle == pytest.approx([240, 240], abs=2)
    assert last == pytest.approx([120, 360], abs=2)


def test_short_and_long_requests_come_in_the_published_split():
    arrivals = sent("poisson-short-long")
    assert len(arrivals) == 5_700
    assert len(times(arrivals, 1)) / len(arrivals) == pytest.approx(8 / 9.5, abs=0.02)
    sizes = {(one.job.num_prompt_tokens, one.job.answer.length) for one in arrivals}
    assert sizes == {(64, 64), (256, 256)}


@pytest.mark.parametrize("seed", range(3))
def test_the_rebuilt_trace_has_the_published_mean_and_percentiles(seed):
    arrivals = sent("real", seed)
    for lengths, quantiles, mean in (
        ([one.job.num_prompt_tokens for one in arrivals], real.INPUT_QUANTILES, 136),
        ([one.job.answer.length for one in arrivals], real.OUTPUT_QUANTILES, 256),
    ):
        assert np.mean(lengths) == pytest.approx(mean, rel=0.01)
        for share, length in quantiles[1:]:
            assert np.percentile(lengths, 100 * share) == pytest.approx(length, rel=0.02, abs=1)
    when = np.array([one.when for one in arrivals])
    assert when.min() >= 0
    assert when.max() < 600
    assert (when < 270).mean() == pytest.approx(0.40, abs=0.03)


def test_one_seed_is_one_trace():
    assert sent("real") == sent("real")
    assert sent("real") != sent("real", seed=1)


# --- measures ----------------------------------------------------------------------------------


def finished(name, client, arrived, began, ended, prompt=100, output=50):
    job = Job(name, (Span(1, prompt),), Span(2, output), tenant=client)
    token_times = array("d", np.linspace(began, ended, output))
    return JobTrace(job, arrived, arrived, ended, token_times=token_times)


def trace(*jobs):
    return Trace({job.job.job_id: job for job in jobs}, {}, frozenset(), 700.0)


def test_service_is_spread_evenly_from_the_first_token_to_the_last():
    clients = served(trace(finished("one", "a", 0.0, 10.0, 30.0)))  # 200 units
    assert rates(clients, 0.0, 20.0) == [pytest.approx(100 / 20)]
    assert rates(clients, 25.0, 45.0) == [pytest.approx(50 / 20)]
    assert rates(clients, 0.0, 10.0) == [0.0]


def test_unfinished_requests_are_no_service_and_their_clients_are_still_there():
    waiting = JobTrace(Job("w", (Span(1, 10),), Span(2, 10), tenant="b"), 0.0)
    clients = served(trace(finished("one", "a", 0.0, 10.0, 30.0), waiting))
    assert set(clients) == {"a", "b"}
    assert rates(clients, 0.0, 60.0) == [pytest.approx(200 / 60), 0.0]


def test_the_ticks_are_those_of_the_published_analysis():
    assert len(ticks()) == 19
    assert ticks()[0] == 28.5
    assert ticks()[-1] == 541.5


def test_the_service_difference_of_a_case_followed_by_hand():
    """Both send 200 units in the first window; a gets them there, b a half later: b lacks 100."""
    a = finished("one", "a", 30.0, 40.0, 60.0)
    b = finished("two", "b", 30.0, 78.5, 98.5)
    found = service_difference(served(trace(a, b)))
    # The first window is [28.5, 88.5]: b has 100 of its 200 units.
    assert found.values[0] == pytest.approx(100 / 60)
    # The second is [57, 117]: a has 30 and b 200, sent before: a lacks min(170, |0 - 30|).
    assert found.values[1] == pytest.approx(30 / 60)
    # Later only b has something, and a sent nothing.
    assert not found.values[2:].any()


def test_a_client_that_gets_all_it_sends_lacks_nothing_however_much_another_gets():
    jobs = [finished("small", "a", 300.0, 301.0, 302.0)]
    jobs += [finished(f"b{n}", "b", 300.0, 301.0 + n, 302.0 + n) for n in range(20)]
    found = service_difference(served(trace(*jobs)))
    window = (ticks() <= 300) & (ticks() + 60 >= 322)
    assert found.values[window] == pytest.approx(0)


def test_difference_has_max_mean_and_variance():
    found = ServiceDifference(np.array([1.0, 2.0, 6.0]))
    assert (found.largest, found.mean, found.variance) == (6.0, 3.0, pytest.approx(14 / 3))


def test_throughput_counts_prompts_and_answers_until_the_last_end():
    assert throughput(trace(finished("one", "a", 0.0, 1.0, 3.0))) == 150 / 3


def sample(now, backlogged, **service):
    milli = {name: 1_000 * units for name, units in service.items()}
    return FairnessSample(now, 0, 0, frozenset(backlogged), milli)


def test_the_contended_gap_is_the_range_while_both_wait_and_by_weight():
    samples = [
        sample(0, "ab", a=0, b=0),
        sample(1, "ab", a=100, b=0),
        sample(2, "a", a=500, b=0),  # b had nothing to wait for
        sample(3, "ab", a=500, b=10),
        sample(4, "ab", a=500, b=90),
    ]
    assert contended_gap(samples, {"a": 1.0, "b": 1.0}) == 100
    assert contended_gap(samples, {"a": 2.0, "b": 1.0}) == 80
    assert contended_gap(samples[:1], {"a": 1.0, "b": 1.0}) == 0


# --- the server --------------------------------------------------------------------------------

# Milliseconds to decode, per step, of S-LoRA with Llama 2 7B on an A10G: prompt, answer, batch,
# and seconds per request as the artifact publishes them (fair_bench/cost_profile.json).
PROFILE = (
    (8, 196, 49, 0.14817801),
    (8, 256, 37, 0.25211187),
    (64, 128, 52, 0.09524755),
    (64, 196, 38, 0.19397690),
    (64, 256, 31, 0.30026343),
    (256, 64, 31, 0.08188322),
    (256, 128, 26, 0.19023098),
    (256, 196, 22, 0.33721171),
    (256, 256, 19, 0.50111907),
    (512, 64, 17, 0.14756105),
    (512, 128, 15, 0.33300082),
    (512, 196, 14, 0.54488375),
    (512, 256, 13, 0.76035540),
)


@pytest.mark.parametrize(("prompt", "answer", "batch", "per_request_s"), PROFILE)
def test_the_preset_decodes_as_fast_as_published(prompt, answer, batch, per_request_s):
    context = round(batch * (prompt + answer / 2))
    work = StepWork(batch, decode_tokens=batch, decode_pairs=context, kv_tokens=context)
    published = per_request_s * batch / (answer - 1)
    assert SLORA_A10G.seconds(work) == pytest.approx(published, rel=0.017)


def test_the_preset_computes_prompts_as_fast_as_published():
    for tokens, seconds in ((64, 0.01369), (256, 0.05475), (512, 0.11075)):
        work = StepWork(1, prefill_tokens=tokens, kv_tokens=tokens)
        assert SLORA_A10G.seconds(work) == pytest.approx(seconds, rel=0.02)


def test_nineteen_requests_of_512_tokens_fit_and_a_mixture_is_held_back_by_memory():
    kv_tokens = PRESETS["slora-a10g-llama-2-7b"].kv_tokens
    assert slots(sent("overload"), kv_tokens) == 19
    assert slots(sent("real"), kv_tokens) > 100


@pytest.fixture(scope="module")
def short():
    """Two clients in overload for 60 seconds, under each policy."""
    suite = replace(SUITES["overload"], draw=steady(60, Steady(1.5), Steady(3.0)))
    arrivals = suite.arrivals(default_rng(0))
    return {
        name: experiment(suite, arrivals, policy())
        for name, policy in policies(suite, arrivals).items()
    }


def test_requests_are_admitted_no_sooner_than_ten_steps_after_the_last(short):
    one = short["VTC"].run.trace
    ended = np.frombuffer(one.replicas["replica"].timeline.ended)
    granted = sorted({job.granted for job in one.jobs.values()})
    assert granted[1] >= COLD_START_S
    steps = np.searchsorted(ended, np.array(granted), side="right")
    assert np.diff(steps).min() >= STEPS_BETWEEN_ADMISSIONS
    rows = np.frombuffer(one.replicas["replica"].timeline.rows, np.int64)
    assert rows.max() == 19
    assert one.replicas["replica"].stats.preemptions == 0


def test_everything_is_charged_whatever_the_policy(short):
    for one in short.values():
        last = one.run.samples[-1].service
        assert last == {"client-01": 90 * 768_000, "client-02": 180 * 768_000}


def test_the_gap_is_flat_under_fair_policies_and_grows_under_first_come_first_served(short):
    moments = np.array([50.0, 95.0])
    fcfs, vtc, oracle = (
        accumulated_gap(short[name].clients, moments) for name in ("FCFS", "VTC", "VTC (oracle)")
    )
    assert fcfs[1] > 2 * fcfs[0]
    assert fcfs[1] > 2 * vtc.max() > 2 * oracle.max()


def test_the_better_lengths_are_known_the_smaller_the_gap(short):
    gaps = [short[name].gap for name in ("FCFS", "LCF", "VTC", "VTC (±50%)", "VTC (oracle)")]
    assert gaps == sorted(gaps, reverse=True)
    assert short["VTC"].gap < 2 * 2 * 10_000 < short["FCFS"].gap  # the paper's 2U


def test_fairness_costs_no_throughput(short):
    for name, one in short.items():
        assert one.throughput == pytest.approx(short["FCFS"].throughput, rel=0.02), name


def test_weights_are_kept_under_equal_load():
    weights = {"client-01": 1_000, "client-02": 3_000}
    suite = Suite("weights", "", steady(50, Steady(2.0), Steady(2.0)), weights=weights)
    arrivals = suite.arrivals(default_rng(0))
    runs = {
        name: experiment(suite, arrivals, policies(suite, arrivals)[name]())
        for name in ("FCFS", "VTC", "VTC (oracle)")
    }
    assert runs["FCFS"].gap > 2 * runs["VTC"].gap > 2 * runs["VTC (oracle)"].gap
    for name, wanted in (("FCFS", 1), ("VTC (oracle)", 3)):
        light, heavy = rates(runs[name].clients, 10.0, 50.0)
        assert heavy / light == pytest.approx(wanted, rel=0.1)


def test_a_run_ends_when_requests_are_few_and_far_between():
    suite = replace(SUITES["overload"], draw=steady(60, Steady(0.05)))
    one = run(suite, suite.arrivals(default_rng(0)), VtcPolicy())
    waits = [job.token_times[0] - job.arrived for job in one.trace.jobs.values()]
    assert len(waits) == 3
    assert waits[0] > COLD_START_S
    assert max(waits[1:]) < 0.1


# --- scenarios ---------------------------------------------------------------------------------


def test_a_scenario_has_their_table_beside_ours_and_plots():
    suite = replace(SUITES["real"], draw=steady(10, Steady(1.0), Steady(1.0)))
    result = compare(suite, default_rng(0))
    ours, theirs, gaps, clients = result.tables
    assert [row[0] for row in theirs.rows] == list(RESULTS["real"])
    assert {row[0] for row in ours.rows} == {row[0] for row in gaps.rows} == set(result.reports)
    assert {"RPM 5", "RPM 20", "RPM 30"} < set(result.reports)
    assert [row[0] for row in clients.rows] == ["client-01", "client-02"]
    assert dict(zip(gaps.columns, gaps.rows[-3], strict=True))["refused (%)"] == 50  # RPM 5
    assert len(result.plots) == 3


def test_published_tables_have_the_order_that_ours_is_held_to():
    for results in RESULTS.values():
        means = [one.mean for name, one in results.items() if not name.startswith("RPM")]
        assert means == sorted(means, reverse=True)
