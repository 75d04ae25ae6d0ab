"""A team does every chunk of every phase once, phases in order, whoever is slow or absent."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu import structs
from kernels.cpu import team as teams
from kernels.cpu.library import native
from kernels.cpu.team import Team, available_cores, default_threads


class Recorder:
    """A job that notes what was done, in order of completion, and by whom."""

    def __init__(self, chunks: list[int], work=lambda phase, chunk, worker: None) -> None:
        self.done: list[tuple[int, int]] = []
        self.workers: set[int] = set()
        self.begun: list[int] = []
        self.in_order = True  # every phase began when those before it were done
        self._chunks = chunks
        self._extra = work
        self.job = structs.Job(structs.Begin(self._begin), structs.Work(self._work), None)

    def _begin(self, _argument, phase: int) -> int:
        expected = [(p, c) for p in range(phase) for c in range(self._chunks[p])]
        self.in_order &= sorted(self.done) == expected
        self.begun.append(phase)
        return self._chunks[phase] if phase < len(self._chunks) else structs.JOB_DONE

    def _work(self, _argument, phase: int, chunk: int, worker: int) -> None:
        self._extra(phase, chunk, worker)
        self.workers.add(worker)
        self.done.append((phase, chunk))

    def run(self, team: Team) -> "Recorder":
        native().evh_team_run(team.handle, ctypes.byref(self.job))
        return self

    def assert_complete(self, team: Team) -> None:
        assert self.in_order
        assert self.begun == list(range(len(self._chunks) + 1))
        assert sorted(self.done) == [(p, c) for p, n in enumerate(self._chunks) for c in range(n)]
        assert self.workers <= set(range(team.threads))


@pytest.fixture(scope="module", params=[1, 2, 3, 8])
def team(request) -> Team:
    return Team(request.param)


@settings(max_examples=40, deadline=None)
@given(chunks=st.lists(st.integers(0, 12), max_size=12))
def test_every_chunk_is_done_once_and_phases_follow_each_other(team: Team, chunks: list[int]):
    Recorder(chunks).run(team).assert_complete(team)


def test_a_phase_of_one_chunk_is_done_by_whoever_begins_it(team: Team):
    job = Recorder([1] * 20).run(team)
    job.assert_complete(team)
    assert job.workers == {0}


def test_threads_share_a_phase():
    team = Team(2)
    both = threading.Barrier(2, timeout=60)
    job = Recorder([2], lambda phase, chunk, worker: both.wait()).run(team)
    job.assert_complete(team)
    assert job.workers == {0, 1}


def test_a_thread_without_a_chunk_holds_nobody_up():
    team = Team(3)
    stuck, go_on = threading.Event(), threading.Event()

    def work(phase: int, chunk: int, worker: int) -> None:
        if phase == 0 and chunk == 0:
            stuck.set()
            assert go_on.wait(60)
        elif phase == 0:
            assert stuck.wait(60)
            if chunk == 19:  # the last one: the other thread goes on once all else is done
                go_on.set()

    job = Recorder([20, 3, 1, 7], work).run(team)
    job.assert_complete(team)


def test_sleeping_threads_wake_for_the_next_job(team: Team):
    for _ in range(3):
        time.sleep(0.01)  # longer than they stay awake
        Recorder([4, 1, 4]).run(team).assert_complete(team)


def test_callers_take_turns():
    team = Team(2)
    jobs = [Recorder([3, 1, 5] * 10) for _ in range(4)]
    callers = [threading.Thread(target=job.run, args=(team,)) for job in jobs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    for job in jobs:
        job.assert_complete(team)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no thread affinity here")
def test_a_caller_may_run_where_it_could_before():
    before = os.sched_getaffinity(0)
    during: list[set[int]] = []
    team = Team(available_cores())
    job = Recorder([1], lambda *_: during.append(os.sched_getaffinity(0)))
    job.run(team)
    assert os.sched_getaffinity(0) == before
    if len(before) > 1:
        assert during == [{min(before)}]


def test_a_small_team_is_not_bound_to_cores():
    if available_cores() == 1:
        pytest.skip("one core")
    before, during = os.sched_getaffinity(0), []
    Recorder([1], lambda *_: during.append(os.sched_getaffinity(0))).run(Team(1))
    assert during == [before]


def test_a_dropped_team_ends_its_threads():
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("the system does not list threads")

    def threads() -> int:
        return len(list(tasks.iterdir()))

    gc.collect()
    before = threads()
    team = Team(5)
    Recorder([8]).run(team)
    assert threads() == before + 4
    del team
    gc.collect()
    assert threads() == before


_ENDING = """
from kernels.cpu.library import native
from kernels.cpu.team import Team

native().evh_team_destroy = lambda _handle: print("destroyed")
team = Team(2)
"""


def test_a_process_that_ends_leaves_its_teams_alone():
    """A daemon thread may still compute then."""
    done = subprocess.run(
        [sys.executable, "-c", _ENDING], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("quota", "threads"),
    [
        ("max 100000", 64),
        ("200000 100000", 2),
        ("350000 100000", 3),
        ("50000 100000", 1),
        ("9900000 100000", 64),
    ],
)
def test_a_container_gets_as_many_threads_as_its_quota_has_cores(
    quota: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """More of them would spin away the time that it has."""
    monkeypatch.setattr(teams, "available_cores", lambda: 64)
    monkeypatch.setattr(teams, "_QUOTA", tmp_path / "cpu.max")
    assert default_threads() == 64
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert default_threads() == threads


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_impossible_sizes_are_refused(threads: int):
    with pytest.raises(ValueError, match="not 1 to 1024"):
        Team(threads)
