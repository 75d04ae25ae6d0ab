"""The acceptance cases of scheduling by number: admission (B), samples (D), the totals (G)."""

import random

import pytest

from engine.core.errors import NeverFits, QueueFull
from engine.core.preemption import PreemptEvery
from engine.core.request import FinishReason, RequestStatus
from tests.engine.core.rig import Rig, config, full_house, request, samples, tokens


def test_b1_a_second_prompt_that_cannot_fit_waits_and_nothing_is_preempted():
    rig = Rig(config(130, max_num_batched_tokens=64))
    for index in range(2):
        rig.add(request(f"r{index}", tokens(1590, seed=index), max_tokens=20))
    while rig.requests["r0"].status is not RequestStatus.FINISHED:
        rig.step()
        assert rig.core.stats().running <= 1
    emitted = [report.step for report in rig.reports if report.emitted]
    assert emitted == list(range(emitted[0], emitted[0] + 20))  # the first never paused
    rig.drain()
    assert rig.core.stats().preemptions == 0


def test_b1_memory_is_taken_for_the_whole_prompt_not_chunk_by_chunk():
    rig = Rig(config(190, max_num_batched_tokens=64, long_prefill_token_threshold=32))
    for index in range(2):
        rig.add(request(f"r{index}", tokens(1590, seed=index), max_tokens=2))
    rig.step()
    assert rig.core.stats().running == 1  # 100 blocks of 190 are taken, though 2 are written
    rig.drain()
    assert rig.core.stats().preemptions == 0


def test_b2_what_can_never_fit_is_refused_at_once_and_the_next_is_served():
    rig = Rig(config(4, max_model_len=1000))
    with pytest.raises(NeverFits) as refusal:
        rig.add(request("huge", tokens(64)))
    assert (refusal.value.num_prompt_tokens, refusal.value.max_tokens) == (64, 64)
    assert not rig.core.has_work()
    rig.assert_output(rig.run(request("largest", tokens(63), max_tokens=5)))


def test_b3_output_that_outgrows_the_pool_ends_with_length():
    rig = Rig(config(4))
    grown = rig.run(request("grows", tokens(20), max_tokens=1000))
    assert grown.finish_reason is FinishReason.LENGTH
    assert grown.num_tokens == 64
    assert rig.core.stats().preemptions == 0
    rig.assert_output(rig.run(request("next", tokens(20, seed=1))))


def test_b4_the_queue_is_capped_by_requests_and_a_refusal_keeps_nothing():
    rig = Rig(config(100, max_waiting_requests=4))
    for index in range(4):
        rig.add(request(f"r{index}", tokens(10, seed=index)))
    for index in range(4, 20):
        with pytest.raises(QueueFull) as refusal:
            rig.add(request(f"r{index}", tokens(10, seed=index)))
        assert (refusal.value.dimension, refusal.value.limit) == ("requests", 4)
    assert rig.core.stats().waiting == 4
    rig.drain()
    rig.add(request("r19", tokens(10)))  # its id was not kept either
    rig.drain()


def test_b5_the_newest_is_preempted_and_the_budget_holds():
    rig = Rig(config(6, max_num_batched_tokens=96))
    full_house(rig)
    report = rig.step()
    assert report.num_preempted == 1
    assert rig.requests["r2"].status is RequestStatus.PREEMPTED
    assert rig.rows() == [("r0", 32, 1), ("r1", 32, 1)]
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_b6_the_victim_resumes_before_a_later_arrival():
    rig = Rig(config(6, max_num_batched_tokens=96))
    full_house(rig)
    later = rig.add(request("later", tokens(5, seed=9), max_tokens=2))  # would fit much sooner
    rig.step()
    victim = rig.requests["r2"]
    while later.status is RequestStatus.WAITING:
        assert victim.status is not RequestStatus.FINISHED
        rig.step()
    assert victim.status is not RequestStatus.PREEMPTED
    rig.drain()
    rig.assert_output(victim)


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("every", [1, 3])
def test_b7_output_with_forced_preemption_equals_output_without(every, prefix_cache):
    """Seeded tokens, their log-probabilities, and each prompt's scores exactly once."""
    settings_ = config(60, max_num_batched_tokens=32, prefix_cache=prefix_cache, max_num_seqs=8)
    rig = Rig(settings_, preemption=PreemptEvery(every))
    for index in range(8):
        prompt = tokens(30 + 9 * index, seed=index // 2)
        asks = {"logprobs": 2, "prompt_logprobs": 1} if index % 2 else {}
        rig.add(request(f"r{index}", prompt, max_tokens=25, seed=index, **asks))
    rig.add(*samples("s", 3, tokens(50, seed=9), max_tokens=25))
    rig.drain()
    assert rig.core.stats().preemptions >= 8
    assert rig.core.stats().recomputed_tokens > 0
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def random_lives(seed: int) -> tuple[Rig, set[str]]:
    """200 random steps on a pool too small for what runs on it; ends with nothing left to do."""
    draw = random.Random(seed)
    block_size = draw.choice([4, 8])
    rig = Rig(
        config(
            draw.randint(12, 40),
            block_size=block_size,
            max_num_seqs=8,
            max_num_batched_tokens=draw.choice([8, 40, 100]),
            reserve=draw.choice([0, 0.02]),
            prefix_cache=seed % 4 != 0,
        )
    )
    cut: set[str] = set()
    for step in range(200):
        if draw.random() < 0.4:
            length = draw.randint(1, rig.config.max_sequence_tokens // 3)
            prompt = (*tokens(length - length // 4), *tokens(length // 4, draw.randint(1, 5)))
            changes = {"max_tokens": draw.randint(1, 60), "namespace": draw.choice("aab")}
            rig.add(*samples(f"r{step}", draw.choice([1, 1, 3]), prompt, **changes))
        live = sorted(rig.core._scheduler.requests)
        if live and draw.random() < 0.05:
            ended = draw.choice(live)
            cut.add(ended)
            rig.core.abort(ended)
            rig.check()
        elif live and draw.random() < 0.1:
            rig.forced.request_ids = set(draw.sample(live, min(2, len(live))))
        rig.step()
    rig.drain()
    return rig, cut


@pytest.mark.parametrize("seed", range(10))
def test_b8_random_steps_on_a_crowded_pool_lose_no_block_and_change_no_output(seed):
    rig, cut = random_lives(seed)
    stats = rig.core.stats()
    assert stats.held_blocks == 0
    assert stats.preemptions > 0
    assert (stats.prefix_hit_tokens > 0) == rig.config.prefix_cache
    for request_id, wanted in rig.requests.items():
        if request_id not in cut:
            rig.assert_output(wanted)


def test_d1_samples_differ_by_seed_repeat_and_share_the_prompts_blocks():
    texts = []
    for _ in range(2):
        rig = Rig(config(40))
        four = samples("s", 4, tokens(70), max_tokens=6)
        rig.add(*four)
        rig.step()
        rig.step()
        assert [rig.pool.ref_count(block) for block in four[0].block_tables[0]] == [4] * 4 + [1]
        assert rig.core.stats().held_blocks == 4 + 4
        rig.drain()
        for sample in four:
            rig.assert_output(sample)
        texts.append([sample.output_token_ids for sample in four])
        stats = rig.core.stats()
        assert stats.prefix_query_tokens == 70  # once, not four times
        assert stats.computed_tokens == 70 + 3 + 4 * 5  # a fork computes the last prompt token
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts[0]}) == 4


@pytest.mark.parametrize("use_cache", [True, False])
def test_d2_more_samples_than_may_run_complete(use_cache):
    rig = Rig(config(60, max_num_seqs=8))
    many = samples("s", 64, tokens(40), max_tokens=10, use_cache=use_cache)
    rig.add(*many)
    rig.drain()
    for sample in many:
        rig.assert_output(sample)
    assert rig.core.stats().prefix_query_tokens == (40 if use_cache else 0)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_d3_aborting_all_samples_frees_everything(steps):
    rig = Rig(config(40, max_num_seqs=3, max_num_batched_tokens=30))
    five = samples("s", 5, tokens(50), max_tokens=20)
    rig.add(*five)
    for _ in range(steps):
        rig.step()
    for sample in five:
        assert rig.core.abort(sample.request_id)
        rig.check()
    assert rig.core.stats().held_blocks == 0
    assert not rig.core.has_work()


def test_d4_a_sample_copies_the_shared_partial_block_before_it_writes():
    rig = Rig(config(40))
    first, second = samples("s", 2, tokens(20), max_tokens=30)
    rig.add(first, second)
    rig.step()
    rig.step()
    (copy,) = rig.batches[-1].copies
    assert (copy.source, copy.target) == (first.block_tables[0][1], second.block_tables[0][1])
    assert first.block_tables[0][0] == second.block_tables[0][0]
    assert rig.rows() == [("s/0", 19, 1), ("s/1", 19, 1)]
    assert rig.core.stats().copied_blocks == 1
    rig.drain()
    rig.assert_output(first)
    rig.assert_output(second)


def test_d4_a_prompt_that_ends_with_a_block_is_shared_without_its_last_block():
    rig = Rig(config(40))
    first, second = samples("s", 2, tokens(32), max_tokens=3)
    rig.add(first, second)
    rig.step()
    rig.step()
    assert [copy.target for copy in rig.batches[-1].copies] == [second.block_tables[0][1]]
    rig.drain()
    rig.assert_output(second)


def test_g1_random_prompts_with_forced_preemption_have_a_hit_rate_of_zero():
    rig = Rig(config(100))
    for index in range(4):
        rig.add(request(f"r{index}", tokens(40, seed=index), max_tokens=20))
    for step in range(30):
        if step % 3 == 2:
            rig.forced.request_ids = {"r1", "r2"}
        rig.step()
    rig.drain()
    stats = rig.core.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (160, 0)
    assert stats.preemptions > 0


def test_g2_a_request_retried_fifty_times_for_space_is_counted_once():
    rig = Rig(config(8))
    rig.add(request("holder", tokens(70), max_tokens=57))
    rig.add(request("patient", tokens(100, seed=1), max_tokens=1))
    for _ in range(50):
        rig.step()
    assert rig.core.stats().prefix_query_tokens == 70
    rig.drain()
    assert rig.core.stats().prefix_query_tokens == 170


def test_g4_the_totals_are_the_sums_of_the_reports():
    rig = Rig(config(20, max_num_seqs=4))
    for index in range(10):
        prompt = (*tokens(32), *tokens(20, seed=index + 1))
        rig.add(*samples(f"r{index}", 1 + index % 3, prompt, max_tokens=30))
    for step in range(40):
        if step % 9 == 8:
            rig.forced.request_ids = {"r1/0", "r2/1", "r3/0"}
        rig.step()
    rig.drain()
    stats, reports = rig.core.stats(), rig.reports
    assert stats.computed_tokens == sum(report.num_batch_tokens for report in reports)
    assert stats.preemptions == sum(report.num_preempted for report in reports) > 0
    assert stats.copied_blocks == sum(len(batch.copies) for batch in rig.batches) > 0
    admissions = [admission for report in reports for admission in report.admitted]
    assert sorted(each.request_id for each in admissions) == sorted(rig.requests)
    firsts = [each for each in admissions if each.request_id.endswith("/0")]
    assert stats.prefix_hit_tokens == sum(each.num_cached_tokens for each in firsts) > 0
    assert stats.prefix_query_tokens == 52 * 10
    emitted = sum(len(report.emitted) for report in reports)
    assert emitted == sum(len(wanted.output_token_ids) for wanted in rig.requests.values())
    work = sum(len(wanted.prompt_token_ids) for wanted in rig.requests.values())
    assert stats.computed_tokens <= work + emitted + stats.recomputed_tokens
