"""Who may start before whom: bounded passing, barriers, and pinned blocks as the last resort."""

import pytest

from engine.core.request import RequestStatus
from tests.engine.core.rig import Rig, config, request, samples, tokens


def crowded(max_passes: int = 8, small: int = 12) -> Rig:
    """A long runner holds half the pool, a large one waits, then come small ones that fit."""
    rig = Rig(config(10, max_passes=max_passes, max_num_seqs=3))
    rig.add(request("runner", tokens(70), max_tokens=40))  # 5 blocks, 7 at the end
    rig.add(request("large", tokens(120, seed=1), max_tokens=2))  # 8 blocks
    for index in range(small):
        rig.add(request(f"small{index}", tokens(10, seed=index + 2), max_tokens=2))
    return rig


def order_of_admission(rig: Rig) -> list[str]:
    rig.drain()
    return [admission.request_id for report in rig.reports for admission in report.admitted]


@pytest.mark.parametrize("max_passes", [0, 1, 2, 8])
def test_what_does_not_fit_is_passed_so_often_and_not_once_more(max_passes):
    rig = crowded(max_passes)
    order = order_of_admission(rig)
    assert order.index("large") == 1 + max_passes
    assert order[1 : 1 + max_passes] == [f"small{index}" for index in range(max_passes)]
    for wanted in rig.requests.values():
        rig.assert_output(wanted)


def test_only_admissions_count_as_passing():
    rig = crowded(small=0)
    for _ in range(20):
        rig.step()
    assert rig.requests["large"].family.num_passes == 0
    rig.add(request("small", tokens(10, seed=2), max_tokens=2))
    rig.step()
    assert rig.requests["large"].family.num_passes == 1


def test_a_family_is_passed_as_one_and_none_of_its_samples_more_often():
    rig = Rig(config(10, max_passes=2, max_num_seqs=3))
    rig.add(request("runner", tokens(70), max_tokens=40))
    rig.add(*samples("large", 2, tokens(120, seed=1), max_tokens=2))
    for index in range(6):
        rig.add(request(f"small{index}", tokens(10, seed=index + 2), max_tokens=2))
    order = order_of_admission(rig)
    assert order[:4] == ["runner", "small0", "small1", "large/0"]
    assert rig.requests["large/1"].family.num_passes == 2


def test_a_victim_is_never_passed():
    rig = Rig(config(10, max_num_seqs=4, max_num_batched_tokens=160))
    rig.add(request("oldest", tokens(79), max_tokens=60))
    rig.add(request("victim", tokens(79, seed=1), max_tokens=60))
    rig.step()
    rig.step()
    rig.add(request("small", tokens(3, seed=2), max_tokens=2))
    while rig.requests["victim"].status is not RequestStatus.PREEMPTED:
        rig.step()
    while rig.requests["victim"].status is RequestStatus.PREEMPTED:
        assert rig.requests["small"].status is RequestStatus.WAITING
        rig.step()
    rig.drain()


def test_a_step_looks_at_a_few_that_do_not_fit_however_long_the_queue():
    rig = Rig(config(10, max_num_seqs=3))
    rig.add(request("runner", tokens(70), max_tokens=40))
    for index in range(100):
        rig.add(request(f"large{index}", tokens(120, seed=index + 1), max_tokens=1))
    rig.add(request("small", tokens(3, seed=200), max_tokens=1))
    rig.step()
    tried = []
    place = rig.core._scheduler._place
    rig.core._scheduler._place = lambda wanted, plan: tried.append(wanted) or place(wanted, plan)
    rig.step()
    assert [wanted.request_id for wanted in tried] == [f"large{index}" for index in range(8)]
    assert rig.requests["small"].status is RequestStatus.WAITING


def test_pins_are_released_when_nothing_runs_and_the_head_does_not_fit():
    rig = Rig(config(16))
    rig.run(request("warm", tokens(64), max_tokens=1))
    assert rig.core.pin("tenant-a", tokens(64)) == 64
    assert rig.core.stats().pinned_blocks == 4
    small = rig.run(request("small", tokens(100, seed=1), max_tokens=2))
    assert rig.core.stats().pinned_blocks == 4  # it fitted beside them
    large = rig.run(request("large", tokens(230, seed=2), max_tokens=2))
    assert rig.core.stats().pinned_blocks == 0
    rig.assert_output(small)
    rig.assert_output(large)


def test_pins_are_released_when_the_only_running_request_cannot_go_on():
    rig = Rig(config(16))
    rig.run(request("warm", tokens(64), max_tokens=1))
    rig.core.pin("tenant-a", tokens(64))
    grows = rig.run(request("grows", tokens(180, seed=1), max_tokens=70))
    assert rig.core.stats().preemptions == 0
    assert rig.core.stats().pinned_blocks == 0
    rig.assert_output(grows)


def test_newer_requests_are_preempted_before_pins_are_released():
    rig = Rig(config(16, max_num_batched_tokens=400))
    rig.run(request("warm", tokens(64), max_tokens=1))
    rig.core.pin("tenant-a", tokens(64))
    rig.add(request("a", tokens(95, seed=1), max_tokens=30))
    rig.add(request("b", tokens(95, seed=2), max_tokens=30))
    rig.drain()
    assert rig.core.stats().preemptions > 0
    assert rig.core.stats().pinned_blocks == 4
    for name in "ab":
        rig.assert_output(rig.requests[name])
