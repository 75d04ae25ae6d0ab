"""vLLM's published expectations of its scheduler on small pools, in our terms.

The facts are those of its `tests/v1/core/test_scheduler.py`. Deliberate differences:

- vLLM keeps block 0 as a placeholder: its pools of 6 and 11 blocks are our 5 and 10.
- vLLM orders by priority, then by arrival. We have no priorities, so who is older comes first and
  the victim is the newest: its expectations with equal priorities.
- With chunked prefill, vLLM gives the first prompt all the budget it can use and the next one the
  rest. Ours do so under a `long_prefill_token_threshold`; without one they share.
- vLLM admits an arrival in the step in which an older request takes its next block; in ours the
  older ones extend first, so a step that preempts has no newcomer to take back.
"""

import pytest

from engine.core.batch import RunnerOutput, SampledToken
from engine.core.engine_core import EngineCore
from engine.core.request import FinishReason, RequestStatus
from tests.engine.core.rig import Rig, config, request, tokens


def ten(rig: Rig, **changes) -> list:
    return [
        rig.add(request(f"{i}", tokens(10, seed=i), max_tokens=16, **changes)) for i in range(10)
    ]


def test_adding_and_finishing_count_exactly():
    rig = Rig(config(100))
    for index in range(10):
        rig.add(request(f"{index}", tokens(10)))
        assert rig.core.stats().waiting == index + 1
    for index in range(10):
        rig.core.finish(f"{index}", FinishReason.ABORT)
        assert rig.core.stats().waiting == 9 - index
    assert not rig.core.has_work()


@pytest.mark.parametrize(("prefix_cache", "scores"), [(False, None), (True, 5)])
def test_ten_prompts_that_fit_the_budget_start_in_one_step_in_order(prefix_cache, scores):
    rig = Rig(config(100, prefix_cache=prefix_cache))
    wanted = ten(rig, prompt_logprobs=scores)
    rig.step()
    assert rig.rows() == [(f"{index}", 0, 10) for index in range(10)]
    assert (rig.core.stats().waiting, rig.core.stats().running) == (0, 10)
    assert rig.running == wanted


def test_a_prompt_beyond_the_budget_is_computed_in_parts():
    rig = Rig(config(100, max_num_batched_tokens=256))
    rig.add(request("0", tokens(500), max_tokens=4))
    for expected in (256, 244, 1):
        rig.step()
        assert [count for _, _, count in rig.rows()] == [expected]


def test_partial_prompts_run_side_by_side_under_a_threshold():
    rig = Rig(config(200, max_num_batched_tokens=1024, long_prefill_token_threshold=400))
    for index in range(3):
        rig.add(request(f"{index}", tokens(800, seed=index), max_tokens=4))
    for expected in ([400, 400, 224], [400, 400, 224], [1, 1, 800 - 224 - 224]):
        rig.step()
        assert [count for _, _, count in rig.rows()] == expected


def test_the_number_of_running_requests_caps_admission():
    rig = Rig(config(100, max_num_seqs=3))
    ten(rig)
    rig.step()
    assert (rig.core.stats().running, rig.core.stats().waiting) == (3, 7)


def test_one_slot_serves_in_order_of_arrival():
    rig = Rig(config(100, max_num_seqs=1))
    ten(rig)
    rig.drain()
    admitted = [each.request_id for report in rig.reports for each in report.admitted]
    assert admitted == [f"{index}" for index in range(10)]


class Script:
    """A runner that says what it is told."""

    def __init__(self, *spoken: int) -> None:
        self._spoken = list(spoken)

    def execute(self, batch):
        (row,) = batch.rows
        return RunnerOutput({row.request_id: SampledToken(self._spoken.pop(0))})


EOS, STOP = 2, 42


@pytest.mark.parametrize(
    ("spoken", "asked", "kept", "reason"),
    [
        ([10, 11, EOS, 12], {"stop": (EOS,)}, [10, 11, EOS], FinishReason.STOP),
        ([10, STOP, 12], {"stop": (EOS, STOP)}, [10, STOP], FinishReason.STOP),
        ([10, 11, 12], {"max_tokens": 2, "stop": (EOS,)}, [10, 11], FinishReason.LENGTH),
        ([EOS, 10, EOS], {"max_tokens": 2}, [EOS, 10], FinishReason.LENGTH),  # ignore_eos
        ([10, EOS], {"max_tokens": 2, "stop": (EOS,)}, [10, EOS], FinishReason.STOP),
        (
            [EOS, 10, EOS, 11, EOS, 12],
            {"stop": (EOS,), "min_tokens": 4},
            [EOS, 10, EOS, 11, EOS],
            FinishReason.STOP,
        ),
        (
            [10, 11, 12, EOS],
            {"stop": (EOS,), "min_tokens": 4},
            [10, 11, 12, EOS],
            FinishReason.STOP,
        ),
    ],
)
def test_outputs_stop_where_they_must(spoken, asked, kept, reason):
    core = EngineCore(config(10), Script(*spoken))
    wanted = request("0", tokens(5), **({"max_tokens": 10} | asked))
    core.add(wanted)
    while core.has_work():
        core.step()
    assert (wanted.output_token_ids, wanted.finish_reason) == (kept, reason)
    assert core.stats().held_blocks == 0


def test_of_two_prompts_that_fill_the_pool_the_later_is_preempted_by_the_first_new_block():
    rig = Rig(config(10, prefix_cache=False, max_num_batched_tokens=160))
    first, second = (rig.add(request(f"{i}", tokens(80, seed=i), max_tokens=16)) for i in range(2))
    rig.step()
    assert rig.rows() == [("0", 0, 80), ("1", 0, 80)]
    assert [len(each.block_tables[0]) for each in (first, second)] == [5, 5]
    report = rig.step()
    assert rig.rows() == [("0", 80, 1)]
    assert rig.running == [first]
    assert (report.num_preempted, second.status) == (1, RequestStatus.PREEMPTED)
    assert second.num_computed_tokens == 0
    rig.drain()
    rig.assert_output(first)
    rig.assert_output(second)


def test_preemption_under_block_math_with_five_usable_blocks():
    rig = Rig(config(5, max_num_batched_tokens=200, max_num_seqs=3))
    older = rig.add(request("older", tokens(32), max_tokens=20))  # 2 blocks
    rig.step()
    newer = rig.add(request("newer", tokens(32, seed=1), max_tokens=20))
    rig.step()  # the older takes its 3rd block, the newer its 2
    assert (len(older.block_tables[0]), len(newer.block_tables[0])) == (3, 2)
    assert rig.pool.num_idle == 0
    later = rig.add(request("later", tokens(10, seed=2), max_tokens=4))
    report = rig.step()  # the newer needs a 3rd, and nobody is newer
    assert (report.num_preempted, newer.status) == (1, RequestStatus.PREEMPTED)
    assert (report.admitted, later.status) == ((), RequestStatus.WAITING)
    assert rig.running == [older]
    order = []
    while rig.core.has_work():
        rig.step()
        order += [each.request_id for each in rig.running if each.request_id not in order]
    assert order == ["older", "newer", "later"]


def test_a_preempted_request_resumes_by_computing_prompt_and_output_again():
    rig = Rig(config(10, prefix_cache=False, max_num_batched_tokens=160))
    first, second = (rig.add(request(f"{i}", tokens(72, seed=i), max_tokens=16)) for i in range(2))
    for _ in range(10):
        rig.step()
    assert second.status is RequestStatus.PREEMPTED
    known = second.num_tokens
    while second.status is RequestStatus.PREEMPTED:
        rig.step()
    assert ("1", 0, known) in rig.rows()
    assert first.finish_reason is FinishReason.LENGTH
    rig.drain()
    rig.assert_output(second)
