"""Samples of one prompt: who computes it, who waits for it, and what happens when somebody ends."""

import pytest

from engine.core.batch import BlockCopy
from engine.core.errors import DuplicateRequest, NeverFits, QueueFull
from engine.core.plan import Plan
from engine.core.request import FinishReason, RequestStatus
from tests.engine.core.rig import Rig, config, request, samples, tokens


def states(rig: Rig) -> list[str]:
    return [wanted.status.value for wanted in rig.requests.values()]


def test_the_oldest_computes_the_prompt_and_the_others_wait_for_it_in_nobodys_way():
    rig = Rig(config(40, max_num_batched_tokens=40, max_passes=0))
    rig.add(*samples("s", 3, tokens(60), max_tokens=5))
    rig.add(request("behind", tokens(20, seed=1), max_tokens=5))
    rig.step()
    assert states(rig) == ["running", "waiting", "waiting", "running"]
    rig.step()
    rig.step()
    assert states(rig) == ["running"] * 4
    assert rig.core.stats().computed_tokens == 60 + 20 + 2 + 1
    assert rig.requests["s/1"].family.num_passes == 0
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_waiting_for_a_prompt_is_not_being_passed():
    rig = Rig(config(100, max_num_batched_tokens=20, max_passes=1))
    rig.add(*samples("s", 2, tokens(200), max_tokens=5))
    for index in range(4):
        rig.add(request(f"r{index}", tokens(5, seed=index + 1), max_tokens=1))
    rig.step()
    rig.step()
    assert [rig.requests[f"r{index}"].status for index in range(4)] == [RequestStatus.FINISHED] * 4
    assert rig.requests["s/1"].family.num_passes == 0
    rig.drain()


@pytest.mark.parametrize("how", ["abort", "finish", "break", "unsample"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_when_the_oldest_ends_the_next_one_goes_on(how, steps):
    rig = Rig(config(40, max_num_batched_tokens=30))
    rig.add(*samples("s", 3, tokens(70), max_tokens=8))
    for _ in range(steps):
        rig.step()
    match how:
        case "abort":
            rig.core.abort("s/0")
        case "finish":
            rig.core.finish("s/0", FinishReason.STOP)
        case "break":
            rig.broken = {"s/0"}
        case "unsample":
            rig.unsampled = {"s/0"}
    rig.drain()
    rig.assert_output(rig.requests["s/1"])
    rig.assert_output(rig.requests["s/2"])
    assert rig.requests["s/0"].finish_reason is not FinishReason.LENGTH


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("num_prompt", [1, 2, 40, 48, 49])
def test_answers_that_end_at_once_do_not_make_their_siblings_compute_the_prompt_again(
    use_cache, num_prompt
):
    rig = Rig(config(40, max_num_seqs=8))
    rig.add(*samples("s", 8, tokens(num_prompt), max_tokens=1, use_cache=use_cache))
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)
    assert rig.core.stats().computed_tokens == num_prompt + 7


def test_a_copy_of_a_copy_is_taken_from_the_original():
    plan = Plan(config(8))
    plan.copy([BlockCopy(1, 2)])
    plan.copy([BlockCopy(2, 3), BlockCopy(5, 6)])
    plan.copy([BlockCopy(3, 4)])
    assert plan.finish(1).batch.copies == (
        BlockCopy(1, 2),
        BlockCopy(1, 3),
        BlockCopy(5, 6),
        BlockCopy(1, 4),
    )


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_sample_whose_siblings_have_all_ended_is_admitted_like_anyone(use_cache):
    rig = Rig(config(40, max_num_seqs=1))
    rig.add(*samples("s", 3, tokens(40), max_tokens=2, use_cache=use_cache))
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)
    stats = rig.core.stats()
    assert stats.copied_blocks == 0
    assert stats.computed_tokens == (40 + 2 * 8 if use_cache else 3 * 40) + 3
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (40 if use_cache else 0, 0)


def test_every_sample_reports_the_hits_of_the_first():
    rig = Rig(config(40))
    rig.run(request("warm", tokens(64), max_tokens=1))
    rig.add(*samples("s", 3, tokens(64), max_tokens=2))
    rig.drain()
    admitted = [admission for report in rig.reports for admission in report.admitted]
    assert [admission.num_cached_tokens for admission in admitted] == [0, 48, 48, 48]
    stats = rig.core.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (128, 48)


def test_a_fork_leaves_the_reserve_and_needs_only_its_own_blocks():
    rig = Rig(config(10, reserve=0.2))
    rig.add(*samples("s", 4, tokens(100), max_tokens=8))  # 7 blocks, and one for each fork
    rig.step()
    rig.step()
    assert states(rig) == ["running", "running", "waiting", "waiting"]
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_a_preempted_oldest_sample_does_not_stop_the_others():
    rig = Rig(config(40, max_num_seqs=2))
    rig.add(*samples("s", 4, tokens(40), max_tokens=10))
    rig.step()
    rig.step()
    rig.forced.request_ids = {"s/0"}
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_samples_crowd_each_other_out_of_a_small_pool_and_still_end():
    rig = Rig(config(6, max_num_seqs=8))
    rig.add(*samples("s", 8, tokens(30), max_tokens=40))
    rig.drain()
    assert rig.core.stats().preemptions > 0
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_prompt_scores_are_reported_once_for_all_samples():
    rig = Rig(config(40, max_num_batched_tokens=30))
    rig.run(request("warm", tokens(64), max_tokens=1))
    asks = {"max_tokens": 3, "prompt_logprobs": 2, "logprobs": 0}
    rig.add(*samples("s", 3, tokens(64), **asks))
    before = rig.core.stats()
    rig.drain()
    parts = [part for report in rig.reports for part in report.scored]
    assert {part.request_id for part in parts} == {"s/0"}
    assert sum(len(part.logprobs) for part in parts) == 63
    assert rig.core.stats().prefix_query_tokens == before.prefix_query_tokens
    assert rig.core.stats().computed_tokens - before.computed_tokens == 64 + 2 + 3 * 2
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_scores_go_on_with_the_next_sample_where_the_oldest_ended():
    rig = Rig(config(40, max_num_batched_tokens=30))
    rig.add(*samples("s", 2, tokens(100), max_tokens=3, prompt_logprobs=0))
    rig.step()
    rig.core.abort("s/0")
    rig.drain()
    parts = [part for report in rig.reports for part in report.scored]
    assert [(part.request_id, part.start) for part in parts] == [
        ("s/0", 1),
        ("s/1", 31),
        ("s/1", 61),
        ("s/1", 91),
    ]
    rig.assert_output(rig.requests["s/1"])


def test_samples_are_taken_all_or_none():
    rig = Rig(config(10, max_waiting_requests=5, max_waiting_tokens=200))
    with pytest.raises(QueueFull, match="requests"):
        rig.core.add(*samples("s", 6, tokens(10)))
    with pytest.raises(NeverFits):
        rig.core.add(*samples("s", 2, tokens(160)))
    rig.add(*samples("s", 3, tokens(150)))  # 150 tokens, not 450: they share the prompt
    with pytest.raises(DuplicateRequest):
        rig.core.add(*samples("s", 4, tokens(10)))
    with pytest.raises(DuplicateRequest):
        rig.core.add(request("twice", tokens(10)), request("twice", tokens(10)))
    with pytest.raises(QueueFull, match="tokens"):
        rig.core.add(*samples("t", 2, tokens(51)))
    assert rig.core.stats().waiting == 3
    for wanted in list(rig.requests):
        rig.core.abort(wanted)
    rig.add(*samples("t", 5, tokens(150)))
    rig.drain()


def test_a_prompt_without_a_token_is_refused():
    rig = Rig(config(10))
    with pytest.raises(ValueError, match="at least one token"):
        rig.core.add(request("a", ()))
    assert not rig.core.has_work()


def test_requests_with_different_prompts_are_no_samples():
    rig = Rig(config(10))
    with pytest.raises(ValueError, match="share their prompt"):
        rig.core.add(request("a", tokens(10)), request("b", tokens(11)))
    with pytest.raises(ValueError, match="share their prompt"):
        rig.core.add(request("a", tokens(10)), request("b", tokens(10), namespace="other"))
    assert not rig.core.has_work()


@pytest.mark.parametrize("windows", [(None, 5), (12,), (4, 20)])
def test_samples_of_a_model_with_windows_fork_or_start_over(windows):
    rig = Rig(config(60, windows=windows, max_num_batched_tokens=40, block_size=4))
    rig.add(*samples("s", 5, tokens(50), max_tokens=12))
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)
