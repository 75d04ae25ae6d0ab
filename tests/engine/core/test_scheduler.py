"""What the scheduler promises, beyond the acceptance cases by number."""

import pytest

from engine.core.errors import DuplicateRequest, NeverFits, QueueFull
from engine.core.preemption import victim_for
from engine.core.request import FinishReason, RequestStatus
from tests.engine.core.rig import Rig, config, full_house, request, tokens


def test_decodes_come_first_and_a_prefill_gets_the_rest_of_the_budget():
    rig = Rig(config(100, max_num_batched_tokens=32, max_num_seqs=4))
    rig.add(request("decode", tokens(10), max_tokens=20))
    rig.step()
    rig.add(request("prefill", tokens(100, seed=1)))
    rig.step()
    assert rig.rows() == [("decode", 10, 1), ("prefill", 0, 31)]
    rig.step()
    assert rig.rows() == [("decode", 11, 1), ("prefill", 31, 31)]
    assert [row.samples for row in rig.batches[-1].rows] == [True, False]


def test_a_younger_decode_precedes_an_older_prefill():
    rig = Rig(config(100, max_num_batched_tokens=32, long_prefill_token_threshold=20))
    rig.add(request("prefill", tokens(100)))
    rig.add(request("decode", tokens(10, seed=1), max_tokens=20))
    rig.step()
    rig.step()
    assert rig.rows() == [("decode", 10, 1), ("prefill", 20, 20)]


def test_the_threshold_lets_several_prompts_be_computed_side_by_side():
    rig = Rig(config(100, max_num_batched_tokens=48, long_prefill_token_threshold=16))
    for index in range(4):
        rig.add(request(f"r{index}", tokens(60, seed=index)))
    rig.step()
    assert rig.rows() == [("r0", 0, 16), ("r1", 0, 16), ("r2", 0, 16)]
    rig.drain()
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_never_more_than_max_num_seqs_run():
    rig = Rig(config(100, max_num_seqs=3))
    for index in range(8):
        rig.add(request(f"r{index}", tokens(10, seed=index), max_tokens=5))
    rig.step()
    assert (rig.core.stats().running, rig.core.stats().waiting) == (3, 5)
    rig.drain()


def test_an_admission_leaves_the_reserve_idle_unless_nothing_runs():
    rig = Rig(config(10, reserve=0.11))
    assert rig.core.stats().reserve_blocks == 2  # rounded up
    rig.add(request("first", tokens(70), max_tokens=2))  # 5 blocks
    rig.add(request("fits but for the reserve", tokens(60, seed=1), max_tokens=2))  # 4 blocks
    rig.step()
    assert (rig.core.stats().running, rig.core.stats().waiting) == (1, 1)
    rig.drain()
    whole = rig.add(request("whole pool", tokens(159, seed=2), max_tokens=1))
    rig.step()
    assert whole.status is RequestStatus.FINISHED  # it ran, alone, over the reserve


@pytest.mark.parametrize(
    ("share", "blocks", "expected"), [(0.02, 101, 3), (0.07, 100, 7), (0, 9, 0), (0.02, 50, 1)]
)
def test_the_reserve_rounds_up_exactly(share, blocks, expected):
    assert config(blocks, reserve=share).reserve_blocks == expected


def test_a_prompt_that_fills_the_context_is_refused():
    rig = Rig(config(100, max_model_len=50))
    with pytest.raises(NeverFits):
        rig.add(request("long", tokens(50)))
    assert rig.run(request("fits", tokens(49))).finish_reason is FinishReason.LENGTH


def test_output_that_outgrows_the_context_ends_with_length():
    rig = Rig(config(100, max_model_len=40))
    grown = rig.run(request("grows", tokens(20), max_tokens=1000))
    assert (grown.finish_reason, grown.num_tokens) == (FinishReason.LENGTH, 40)


def test_a_stop_token_ends_with_stop_even_on_the_last_allowed_token():
    rig = Rig(config(100))
    free = rig.run(request("free", tokens(20), max_tokens=4))
    stopped = rig.run(request("stops", tokens(20), max_tokens=4, stop=[free.output_token_ids[-1]]))
    assert stopped.finish_reason is FinishReason.STOP
    rig.assert_output(stopped)


def test_the_queue_is_capped_by_tokens():
    rig = Rig(config(100, max_model_len=100, max_waiting_tokens=100))
    rig.add(request("a", tokens(60)))
    with pytest.raises(QueueFull, match="tokens"):
        rig.add(request("b", tokens(41)))
    rig.core.abort("a")
    rig.add(request("b", tokens(41)))


def test_an_id_in_use_is_refused_and_free_again_after_the_end():
    rig = Rig(config(100))
    rig.add(request("same", tokens(10)))
    with pytest.raises(DuplicateRequest):
        rig.core.add(request("same", tokens(10)))
    rig.drain()
    rig.run(request("same", tokens(10)))


def test_several_victims_resume_oldest_first():
    rig = Rig(config(100))
    for index in range(4):
        rig.add(request(f"r{index}", tokens(20, seed=index), max_tokens=10))
    rig.step()
    rig.forced.request_ids = {"r1", "r3"}
    rig.step()
    rig.forced.request_ids = {"r0", "r2"}
    rig.step()
    assert not rig.running
    rig.step()
    assert [wanted.request_id for wanted in rig.running] == ["r0", "r1", "r2", "r3"]


def test_who_resumes_is_as_old_as_before():
    rig = Rig(config(100))
    for index in range(3):
        rig.add(request(f"r{index}", tokens(20, seed=index), max_tokens=10))
    rig.step()
    rig.forced.request_ids = {"r1"}
    rig.step()
    rig.step()
    assert [wanted.request_id for wanted in rig.running] == ["r0", "r1", "r2"]


def test_a_step_that_preempted_admits_nothing():
    rig = Rig(config(6, max_num_batched_tokens=96))
    full_house(rig)
    rig.add(request("tiny", tokens(3, seed=8), max_tokens=2))
    report = rig.step()  # r2's two blocks are free now, and tiny needs one
    assert (report.num_preempted, report.admitted) == (1, ())


def test_a_victim_that_frees_nothing_is_passed_over_but_never_for_an_older_one():
    oldest, middle, newest = (request(f"r{index}", tokens(31)) for index in range(3))
    running = [oldest, middle, newest]
    assert victim_for(oldest, running, lambda _: True) is newest
    assert victim_for(oldest, running, lambda wanted: wanted is not newest) is middle
    assert victim_for(newest, running, lambda wanted: wanted is not newest) is None  # it waits
    assert victim_for(middle, running, lambda wanted: wanted is oldest) is None


def test_usage_keeps_the_hits_of_the_first_admission_and_recompute_is_counted_apart():
    rig = Rig(config(100))
    rig.run(request("warm", tokens(64), max_tokens=1))
    wanted = rig.add(request("again", tokens(64), max_tokens=20))
    for _ in range(5):
        rig.step()
    before = rig.core.stats()
    assert wanted.num_computed_tokens == 68
    rig.forced.request_ids = {"again"}
    rig.drain()
    after = rig.core.stats()
    assert wanted.num_cached_tokens == 48
    assert after.preemptions - before.preemptions == 1
    assert after.prefix_query_tokens == before.prefix_query_tokens == 128
    assert after.prefix_hit_tokens == before.prefix_hit_tokens == 48
    assert after.recomputed_tokens == 68 - 64  # its four full blocks were still cached
    rig.assert_output(wanted)


def test_work_thrown_away_twice_is_counted_twice():
    rig = Rig(config(100, max_num_batched_tokens=32, prefix_cache=False))
    wanted = rig.add(request("r", tokens(100), max_tokens=20))
    while wanted.num_computed_tokens < 103:
        rig.step()
    for _ in range(2):
        rig.forced.request_ids = {"r"}
        rig.step()
        rig.step()
        assert wanted.num_computed_tokens == 32
    rig.drain()
    assert rig.core.stats().recomputed_tokens == 32 + 103
    assert rig.core.stats().computed_tokens == 119 + 32 + 103


def test_without_budget_left_nobody_is_admitted():
    rig = Rig(config(100, max_num_batched_tokens=32))
    for index in range(5):
        rig.add(request(f"r{index}", tokens(100, seed=index)))
    rig.step()
    assert rig.rows() == [(f"r{index}", 0, 8) for index in range(4)]
    assert rig.requests["r4"].status is RequestStatus.WAITING


def test_a_short_prompt_starts_at_once_behind_a_long_one_which_gets_what_is_left():
    rig = Rig(config(100, max_num_batched_tokens=40))
    rig.add(request("long", tokens(1000)))
    rig.step()
    assert rig.rows() == [("long", 0, 40)]
    rig.add(request("short", tokens(5, seed=1)))
    rig.step()
    assert rig.rows() == [("long", 40, 35), ("short", 0, 5)]


def test_what_no_prefill_takes_goes_to_the_oldest_then_to_the_next():
    rig = Rig(config(100, max_num_batched_tokens=40))
    for name, length in (("a", 16), ("b", 100), ("c", 3)):
        rig.add(request(name, tokens(length, seed=length)))
    rig.step()
    assert rig.rows() == [("a", 0, 16), ("b", 0, 21), ("c", 0, 3)]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 3, "max_num_seqs": 4},
        {"max_num_seqs": 0},
        {"reserve": 1},
        {"reserve": -0.1},
        {"max_model_len": 1},
        {"max_waiting_tokens": 10},
        {"long_prefill_token_threshold": -1},
        {"block_size": 0},
        {"windows": (None, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16)},  # more groups than blocks
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes):
    with pytest.raises(ValueError, match=r"must|below"):
        config(10, **changes)
