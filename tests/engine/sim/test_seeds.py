"""Published figures that the simulator reproduces with the real scheduler and KV cache."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from engine.sim.presets import H100, LLAMA_3_1_8B, PRESETS, kv_tokens_beside
from engine.sim.scenarios import batching, fairness, memory, prefill, prefix, sharing, thrash
from engine.sim.static import exponential_utilisation, harmonic, serve
from fairness.policy import FcfsPolicy, VtcPolicy

LIKE_THE_TEXT = 42


@pytest.mark.parametrize("slots", [8, 32, 128])
def test_static_batching_uses_one_over_the_harmonic_number(slots):
    found = exponential_utilisation(default_rng(slots), slots, num_batches=20_000, mean=200)
    assert found == pytest.approx(1 / harmonic(slots), rel=0.01)


def test_one_essay_among_31_short_answers_leaves_5_5_percent_useful():
    run = batching.essay()
    assert (run.useful, run.slots * run.steps) == (3_550, 64_000)
    assert run.utilisation == pytest.approx(0.055, abs=0.0005)
    assert batching.continuous([50] * 31 + [2_000], slots=32).steps == 2_000


@pytest.mark.parametrize("rate", batching.RATES)
def test_continuous_batching_admits_nearly_everyone_at_once(rate):
    arrivals, lengths = batching.traffic(default_rng(0), rate)
    run = batching.continuous(lengths, 32, arrivals)
    offered = sum(lengths) / (32 * run.seconds)
    assert run.slot_utilisation == pytest.approx(offered, rel=0.05)
    assert run.ttft.p90 < 2  # in the next step, which ends within two


@pytest.mark.parametrize(("rate", "busy", "wait"), [(0.03, 19, 500), (0.12, 24, 9_000)])
def test_static_batching_waits_500_steps_when_light_and_drowns_when_heavy(rate, busy, wait):
    runs = []
    for seed in range(40):
        arrivals, lengths = batching.traffic(default_rng(seed), rate)
        runs.append(serve(lengths, 32, arrivals))
    assert 100 * np.mean([run.utilisation for run in runs]) == pytest.approx(busy, abs=1)
    assert np.mean([run.waits for run in runs]) == pytest.approx(wait, rel=0.1)


def test_4096_lognormal_answers_take_4_6_times_fewer_steps():
    """By list scheduling; the next test ties it to the real scheduler."""
    rng = default_rng(LIKE_THE_TEXT)
    memory.in_flight(rng)  # drawn before, from the same generator
    lengths = batching.ANSWERS.draw(rng, batching.NUM_ANSWERS)
    assert serve(lengths, 64).steps / list_scheduling(lengths, 64) == pytest.approx(4.6, abs=0.05)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_the_real_scheduler_takes_the_steps_of_list_scheduling(lengths, slots):
    assert batching.continuous(lengths, slots).steps == list_scheduling(lengths, slots)


def list_scheduling(lengths, slots):
    """Each answer takes the slot that frees first: when the last one is done."""
    free = [0] * slots
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def test_paging_fits_415_requests_where_the_longest_possible_fits_48():
    kv_tokens = kv_tokens_beside(H100, LLAMA_3_1_8B)
    requests = memory.in_flight(default_rng(LIKE_THE_TEXT))
    longest, limit, exact = memory.contiguous(requests, kv_tokens)
    paged = memory.paged(requests, kv_tokens)
    assert round(longest.fits) == 48
    assert paged.fits == pytest.approx(415, rel=0.02)
    assert longest.useful < limit.useful < exact.useful < paged.useful
    assert longest.useful < 0.204  # what was measured in systems that reserve: 20.4 to 38.2 %
    assert 0.204 < limit.useful < 0.382
    assert paged.useful > 0.963  # and in vLLM


def test_paging_wastes_7_5_token_places_per_request_and_less_than_a_block():
    requests = memory.in_flight(default_rng(LIKE_THE_TEXT))
    assert memory.wasted_slots(requests) == pytest.approx(7.5, abs=0.05)
    assert memory.wasted_slots(requests) / 1_000 < 0.01


@pytest.mark.parametrize("traffic", [sharing.ALPACA, sharing.SHAREGPT], ids=lambda t: t.name)
def test_sharing_blocks_saves_what_was_published(traffic):
    """Only the traces' mean lengths are known, so the ends of the ranges agree within a quarter."""
    savings = sharing.savings(default_rng(0), traffic)
    for published, found in (
        (traffic.published_parallel, [saving.parallel for saving in savings]),
        (traffic.published_beam, [saving.beam for saving in savings]),
    ):
        assert found == sorted(found)
        assert found[0] == pytest.approx(published[0], rel=0.25)
        assert found[-1] == pytest.approx(published[1], rel=0.25)
        assert found[0] > 0


@pytest.fixture(scope="module")
def budgets():
    """By token budget, a row per seed: the longest gap in ms, TTFT p99. 200 are in tests/prove."""
    runs = {budget: [] for budget in (*prefill.BUDGETS, prefill.WHOLE_PROMPTS)}
    for seed in range(5):
        traffic = prefill.mixed_traffic(default_rng(seed))
        for budget, found in runs.items():
            run = prefill.at_budget(traffic, budget)
            found.append((1e3 * run.itl.max, run.ttft.p99))
    return {budget: np.array(found) for budget, found in runs.items()}


@pytest.mark.parametrize(("budget", "gap_ms"), [(64, 6), (512, 20), (4_096, 142)])
def test_the_longest_gap_follows_the_token_budget(budgets, budget, gap_ms):
    assert np.median(budgets[budget][:, 0]) == pytest.approx(gap_ms, rel=0.2)


def test_a_tiny_budget_starves_prompts_and_whole_prompts_stop_streams(budgets):
    first_tokens = {budget: np.median(found[:, 1]) for budget, found in budgets.items()}
    assert first_tokens[64] == max(first_tokens.values())
    assert first_tokens[512] == min(first_tokens.values())
    assert np.median(budgets[prefill.WHOLE_PROMPTS][:, 0]) > 200


def test_the_governor_ends_thrash_in_a_pool_eight_times_smaller():
    """The published size is in tests/prove: a smaller pool is refilled in fewer steps."""
    jobs, base = thrash.requests(default_rng(0), scale=8), thrash.config(scale=8)
    without = thrash.overload(jobs, thrash.fixed(base, 0.0))
    governed = thrash.overload(jobs, base)
    assert without.preemptions >= 3 * governed.preemptions
    assert without.recomputed_tokens >= 2 * governed.recomputed_tokens
    assert governed.output_tokens_per_s >= without.output_tokens_per_s
    assert governed.itl.p99 < without.itl.p99


@pytest.mark.parametrize("name", prefill.WARM_PRESETS)
def test_a_cached_prefix_gives_the_first_token_at_least_7_times_sooner(name):
    """7 was measured, fixed costs of the request included; a roofline has only the step's."""
    cold, warm = prefill.first_token_s(PRESETS[name])
    assert cold / warm > 7


def test_more_than_nine_in_ten_prompt_tokens_hit_and_fewer_in_a_small_cache():
    trace = prefix.chat_trace(default_rng(0))
    unlimited = prefix.hit_rate(trace, prefix.everything(trace))
    small = prefix.hit_rate(trace, 8_192)
    assert unlimited > 0.9
    assert small < unlimited - 0.1


def test_weights_one_to_three_give_service_one_to_three_and_fcfs_does_not():
    rng, streams = default_rng(0), fairness.Streams()
    tenants = fairness.weighted_tenants()
    traffic = [arrival for tenant in tenants for arrival in tenant.arrivals(rng, streams, 45)]
    fair = fairness.share_a_replica(VtcPolicy(), tenants, traffic, 45)
    fcfs = fairness.share_a_replica(FcfsPolicy(), tenants, traffic, 45)
    assert fair.service()["three"] / fair.service()["one"] == pytest.approx(3, rel=0.05)
    assert fair.beyond_bound == 0
    assert fcfs.service()["three"] / fcfs.service()["one"] == pytest.approx(1, rel=0.5)
    assert fcfs.largest_spread > 5 * fair.largest_spread
