"""The core as its server uses it: ends in every state, failed steps, and random lives."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from engine.core.batch import RunnerOutput
from engine.core.engine_core import EngineCore
from engine.core.errors import (
    IntegrityError,
    NamespaceInUse,
    NeverFits,
    PinLimit,
    RunnerContractError,
)
from engine.core.request import FinishReason, RequestStatus
from engine.runner.fake import FakeRunner
from tests.engine.core.rig import (
    VOCAB,
    Rig,
    RunnerDownError,
    config,
    expected_output,
    request,
    samples,
    tokens,
)


def test_a_step_reports_the_admission_before_the_first_token():
    rig = Rig(config(40, max_num_batched_tokens=32))
    rig.add(request("r", tokens(40), max_tokens=2))
    first, second, third = rig.step(), rig.step(), rig.step()
    assert [(a.request_id, a.num_cached_tokens) for a in first.admitted] == [("r", 0)]
    assert (first.emitted, second.admitted, third.admitted) == ((), (), ())
    output = rig.requests["r"].output_token_ids
    assert [(e.token_id, e.finish_reason) for e in (*second.emitted, *third.emitted)] == [
        (output[0], None),
        (output[1], FinishReason.LENGTH),
    ]
    assert not rig.core.has_work()


def test_an_idle_step_computes_nothing():
    rig = Rig(config(4))
    assert rig.step().num_batch_tokens == 0
    assert rig.batches == []
    assert rig.core.stats().no_progress_steps == 0


def test_steps_without_progress_are_counted_in_all_and_in_a_row(monkeypatch):
    core = EngineCore(config(40), FakeRunner(40, vocab_size=VOCAB))
    core.add(request("r", tokens(20)))
    with monkeypatch.context() as patch:
        patch.setattr(core._kv_cache, "admit", lambda *_: False)
        for expected in (1, 2, 3):
            assert core.step().num_batch_tokens == 0
            assert core.stats().stalled_steps == expected
    while core.has_work():
        core.step()
    assert (core.stats().no_progress_steps, core.stats().stalled_steps) == (3, 0)


def bring_to(rig: Rig, state: str):
    """A request in the state: waiting, mid-prefill, decoding or preempted."""
    wanted = rig.add(request("r", tokens(50), max_tokens=20))
    for _ in range({"waiting": 0, "mid-prefill": 1, "decoding": 4, "preempted": 4}[state]):
        rig.step()
    if state == "preempted":
        rig.forced.request_ids = {"r"}
        rig.step()
        assert wanted.status is RequestStatus.PREEMPTED
    return wanted


@pytest.mark.parametrize("state", ["waiting", "mid-prefill", "decoding", "preempted"])
@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.STOP])
def test_an_end_in_any_state_returns_the_blocks_at_once_and_is_idempotent(state, reason):
    rig = Rig(config(10, max_num_batched_tokens=20))
    wanted = bring_to(rig, state)
    if reason is FinishReason.ABORT:
        assert rig.core.abort("r")
    else:
        rig.core.finish("r", reason)
    stats = rig.core.stats()
    assert (stats.running, stats.waiting, stats.held_blocks) == (0, 0, 0)
    assert wanted.finish_reason is reason
    assert not rig.core.has_work()
    rig.check()

    assert not rig.core.abort("r")
    rig.core.finish("r", FinishReason.STOP)
    assert wanted.finish_reason is reason
    assert rig.step().emitted == ()


def test_aborting_the_unknown_is_false():
    assert not Rig(config(4)).core.abort("nobody")


def test_an_abort_while_the_batch_is_computed_drops_its_output():
    rig = Rig(config(40))
    rig.add(request("stays", tokens(20), max_tokens=3))
    rig.add(request("goes", tokens(20, seed=1), max_tokens=3))

    def execute_then_abort(batch):
        output = rig.execute(batch)
        rig.core.abort("goes")
        return output

    rig.core._runner = SimpleNamespace(execute=execute_then_abort)
    assert [token.request_id for token in rig.step().emitted] == ["stays"]
    rig.drain()
    rig.assert_output(rig.requests["stays"])


def failures(report):
    return [(failure.request_id, failure.hook) for failure in report.failed]


def test_a_runner_that_fails_for_every_row_ends_its_batch_alone_and_publishes_nothing():
    rig = Rig(config(40, max_num_seqs=2))
    rig.add(request("decoding", tokens(31), max_tokens=9))
    rig.step()
    rig.step()
    rig.add(request("prefilling", tokens(64, seed=1)))
    waiting = rig.add(request("waiting", tokens(64, seed=2)))
    rig.broken = {"decoding", "prefilling"}
    report = rig.step()
    assert failures(report) == [("decoding", "execute"), ("prefilling", "execute")]
    assert all(isinstance(failure.error, RunnerDownError) for failure in report.failed)
    assert report.emitted == ()
    assert rig.requests["prefilling"].finish_reason is FinishReason.ERROR
    stats = rig.core.stats()
    assert (stats.held_blocks, stats.waiting, stats.cached_blocks) == (0, 1, 2)
    rig.drain()
    rig.assert_output(waiting)
    assert rig.run(request("again", tokens(64, seed=1))).num_cached_tokens == 0


@pytest.mark.parametrize("guilty", [{"r3"}, {"r0", "r7"}, {f"r{index}" for index in range(8)}])
def test_only_the_rows_that_cannot_be_computed_end_and_the_others_do_not_notice(guilty):
    rig = Rig(config(100, max_num_seqs=8))
    for index in range(8):
        rig.add(request(f"r{index}", tokens(30 + index, seed=index), max_tokens=6))
    rig.step()
    rig.step()
    rig.broken, executions = guilty, rig.executions
    report = rig.step()
    assert sorted(failures(report)) == [(name, "execute") for name in sorted(guilty)]
    assert rig.executions - executions <= 2 * 8 - 1
    assert len(report.emitted) == 8 - len(guilty)
    rig.drain()
    for request_id in set(rig.requests) - guilty:
        rig.assert_output(rig.requests[request_id])


def test_a_row_whose_token_cannot_be_chosen_ends_alone():
    rig = Rig(config(100))
    for index in range(3):
        rig.add(request(f"r{index}", tokens(32, seed=index), max_tokens=6))
    rig.unsampled = {"r1"}
    assert failures(rig.step()) == [("r1", "sample")]
    assert rig.core.stats().cached_blocks == 0  # its two blocks were computed, but in this step
    rig.drain()
    rig.assert_output(rig.requests["r0"])
    rig.assert_output(rig.requests["r2"])


def test_a_row_that_the_runner_forgets_ends_alone():
    rig = Rig(config(100))
    for index in range(3):
        rig.add(request(f"r{index}", tokens(20, seed=index), max_tokens=6))

    def execute_and_forget(batch):
        output = rig.execute(batch)
        kept = {name: token for name, token in output.sampled.items() if name != "r1"}
        return RunnerOutput(kept)

    rig.core._runner = SimpleNamespace(execute=execute_and_forget)
    report = rig.step()
    assert failures(report) == [("r1", "sample")]
    assert isinstance(report.failed[0].error, RunnerContractError)
    rig.drain()
    rig.assert_output(rig.requests["r0"])
    rig.assert_output(rig.requests["r2"])


@pytest.mark.parametrize("method", ["admit", "extend", "commit"])
def test_a_request_that_cannot_be_scheduled_ends_alone(method, monkeypatch):
    rig = Rig(config(8, max_num_seqs=3))
    for index in range(3):
        rig.add(request(f"r{index}", tokens(30, seed=index), max_tokens=20))
    cache = rig.core._kv_cache
    original = getattr(cache, method)

    def fails_for_one(wanted, *rest):
        if wanted.request_id == "r1":
            raise RunnerDownError
        return original(wanted, *rest)

    monkeypatch.setattr(cache, method, fails_for_one)
    rig.drain()
    failed = [failure for report in rig.reports for failure in failures(report)]
    assert [hook for _, hook in failed] == ["schedule"]
    for name in set(rig.requests) - {failed[0][0]}:
        rig.assert_output(rig.requests[name])


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_fault_of_a_request(interruption):
    rig = Rig(config(40))
    wanted = rig.add(request("r", tokens(20)))

    def interrupt(_):
        raise interruption

    runner, rig.core._runner = rig.core._runner, SimpleNamespace(execute=interrupt)
    with pytest.raises(interruption):
        rig.core.step()
    rig.check()
    rig.core._runner = runner
    rig.drain()
    rig.assert_output(wanted)


def test_integrity_notices_a_leaked_block():
    rig = Rig(config(8))
    rig.add(request("r", tokens(20), max_tokens=9))
    rig.step()
    rig.requests["r"].block_tables[0].pop()
    with pytest.raises(IntegrityError):
        rig.core.check_integrity()


def test_integrity_notices_a_writable_block_in_two_tables():
    rig = Rig(config(8))
    for index in range(2):
        rig.add(request(f"r{index}", tokens(32, seed=index), max_tokens=9))
    rig.step()
    left, right = rig.requests["r0"], rig.requests["r1"]
    rig.pool.hold(left.block_tables[0][:1])
    right.block_tables[0].append(left.block_tables[0][0])
    with pytest.raises(IntegrityError, match="writable"):
        rig.core.check_integrity()


WANTED = st.tuples(
    st.integers(1, 90),  # prompt tokens
    st.sampled_from([False, False, True]),  # whether it differs from the first token on
    st.sampled_from([1, 1, 1, 2, 5]),  # samples
    st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 40),
            "namespace": st.sampled_from(["a", "a", "a", "b"]),
            "use_cache": st.sampled_from([True, True, True, False]),
            "stop": st.sampled_from([(), (), (1, 2, 3)]),
            "logprobs": st.sampled_from([None, None, 2]),
            "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        }
    ),
)


class Lives(RuleBasedStateMachine):
    """Random lives on random small pools; the rig checks every step, lookup and admission."""

    @initialize(
        num_blocks=st.integers(4, 30),
        changes=st.fixed_dictionaries(
            {
                "block_size": st.sampled_from([1, 4, 4, 8]),
                "max_num_seqs": st.integers(1, 6),
                "max_num_batched_tokens": st.integers(6, 70),
                "reserve": st.sampled_from([0, 0.02, 0.3]),
                "long_prefill_token_threshold": st.sampled_from([0, 0, 5]),
                "prefix_cache": st.sampled_from([True, True, True, False]),
                "max_passes": st.sampled_from([0, 1, 8]),
                "windows": st.sampled_from([(None,), (None,), (None, 5), (9,)]),
            }
        ),
    )
    def make(self, num_blocks, changes):
        self.rig = Rig(config(num_blocks, max_model_len=200, **changes))
        self.num_added = 0
        self.cut: set[str] = set()
        self.pinned: list[tuple[str, tuple[int, ...]]] = []

    def live(self):
        return sorted(self.rig.core._scheduler.requests)

    @rule(burst=st.lists(WANTED, min_size=1, max_size=5))
    def add(self, burst):
        for length, diverges, count, changes in burst:
            shared = 0 if diverges else length - length // 5
            prompt = (*tokens(length)[:shared], *tokens(length - shared, self.num_added))
            self.num_added += 1
            wanted = samples(f"r{self.num_added}", count, prompt, **changes)
            if length >= self.rig.config.max_sequence_tokens:
                with pytest.raises(NeverFits):
                    self.rig.core.add(*wanted)
            else:
                self.rig.add(*wanted)

    @rule(count=st.integers(1, 12))
    def step(self, count):
        for _ in range(count):
            self.rig.step()

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def preempt(self, data):
        self.rig.forced.request_ids = set(data.draw(st.lists(st.sampled_from(self.live()))))
        self.rig.step()

    @precondition(lambda self: self.live())
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def end(self, data, reason):
        request_id = data.draw(st.sampled_from(self.live()))
        self.cut.add(request_id)
        self.rig.core.finish(request_id, reason)
        assert not self.rig.core.abort(request_id)
        self.rig.check()

    @precondition(lambda self: self.rig.running)
    @rule(data=st.data(), computed=st.booleans())
    def fail(self, data, computed):
        running = sorted(wanted.request_id for wanted in self.rig.running)
        guilty = set(data.draw(st.lists(st.sampled_from(running), min_size=1)))
        self.rig.broken, self.rig.unsampled = (set(), guilty) if computed else (guilty, set())
        report = self.rig.step()
        assert {failure.request_id for failure in report.failed} <= guilty
        self.rig.broken = self.rig.unsampled = set()

    @precondition(lambda self: self.rig.requests)
    @rule(data=st.data())
    def pin(self, data):
        wanted = self.rig.requests[data.draw(st.sampled_from(sorted(self.rig.requests)))]
        prefix = (wanted.namespace, wanted.prompt_token_ids)
        try:
            if self.rig.core.pin(*prefix):
                self.pinned.append(prefix)
        except PinLimit:
            self.rig.check()

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self):
        self.rig.core.unpin(*self.pinned.pop())
        self.rig.check()

    @rule(namespace=st.sampled_from("ab"))
    def erase(self, namespace):
        if any(wanted.namespace == namespace for wanted in self.rig.running):
            with pytest.raises(NamespaceInUse):
                self.rig.core.erase(namespace)
        else:
            self.rig.erase(namespace)
        self.rig.check()

    def teardown(self):
        if hasattr(self, "rig"):
            self.rig.drain(max_steps=2000)
            assert self.rig.core.stats().held_blocks == 0
            for wanted in self.rig.requests.values():
                self.check_output(wanted)

    def check_output(self, wanted):
        """What the request produced alone, or its beginning if it was cut short."""
        if wanted.request_id in self.cut | self.rig.cut:
            output, _ = expected_output(wanted, self.rig.config.max_sequence_tokens)
            assert wanted.output_token_ids == output[: len(wanted.output_token_ids)]
        else:
            self.rig.assert_output(wanted)


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
