"""A batch of which some rows cannot be computed: who fails, and how often the runner is asked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch import (
    BlockCopy,
    Logprobs,
    RunnerOutput,
    SampledToken,
    ScheduledBatch,
    ScheduledRow,
)
from engine.core.errors import RunnerContractError
from engine.core.execution import execute
from engine.core.request import SamplingParams
from tests.engine.core.rig import Rig, config, samples, tokens

PARAMS = SamplingParams(max_tokens=1)


def row(index: int, scored: range = range(0), *, chooses: bool = True) -> ScheduledRow:
    table = (2 * index, 2 * index + 1)
    return ScheduledRow(f"r{index}", (5, 6), 0, (table,), PARAMS, chooses, (5, 6), (), scored)


def batch(*rows: ScheduledRow, copies: tuple[BlockCopy, ...] = ()) -> ScheduledBatch:
    return ScheduledBatch(3, rows, 2 * len(rows), copies)


class Picky:
    """Raises for batches with certain rows; notes every batch."""

    def __init__(self, guilty=(), output=None) -> None:
        self._guilty = set(guilty)
        self._output = output
        self.batches = []

    def execute(self, given_batch):
        self.batches.append(given_batch)
        names = [each.request_id for each in given_batch.rows]
        if self._guilty & set(names):
            raise OSError(names)
        return self._output or RunnerOutput({name: SampledToken(1) for name in names})


@given(st.integers(1, 17).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_exactly_the_guilty_rows_fail_and_2n_minus_1_executions_suffice(case):
    count, guilty = case
    runner = Picky({f"r{index}" for index in guilty})
    outcome = execute(runner, batch(*(row(index) for index in range(count))))
    assert set(outcome.failed) == {f"r{index}" for index in guilty}
    assert set(outcome.sampled) == {f"r{index}" for index in range(count)} - set(outcome.failed)
    assert {failure.hook for failure in outcome.failed.values()} <= {"execute"}
    assert len(runner.batches) <= 2 * count - 1
    if not guilty:
        assert len(runner.batches) == 1
    for part in runner.batches:
        assert part.step == 3
        assert part.num_tokens == 2 * len(part.rows)


def test_one_guilty_row_among_many_costs_two_executions_for_each_halving():
    runner = Picky({"r11"})
    execute(runner, batch(*(row(index) for index in range(64))))
    assert len(runner.batches) == 1 + 2 * 6


def test_an_empty_batch_is_not_executed():
    runner = Picky()
    assert execute(runner, batch()).failed == {}
    assert runner.batches == []


def test_each_half_makes_the_copies_of_its_own_rows_only():
    runner = Picky({"r0"})
    copies = (BlockCopy(9, 0), BlockCopy(9, 3), BlockCopy(9, 5))
    execute(runner, batch(row(0), row(1), row(2), copies=copies))
    made = {tuple(each.request_id for each in part.rows): part.copies for part in runner.batches}
    assert made == {
        ("r0", "r1", "r2"): copies,
        ("r0",): copies[:1],
        ("r1", "r2"): copies[1:],
    }


SCORE = Logprobs(6, -1.0, 1)


@pytest.mark.parametrize(
    "output",
    [
        RunnerOutput({"r1": SampledToken(1)}, {"r0": (SCORE,)}),
        RunnerOutput({"r0": SampledToken(1), "r1": SampledToken(1)}),
        RunnerOutput({"r0": SampledToken(1), "r1": SampledToken(1)}, {"r0": (SCORE, SCORE)}),
    ],
)
def test_a_row_without_all_its_answers_fails_alone(output):
    outcome = execute(Picky(output=output), batch(row(0, scored=range(1, 2)), row(1)))
    (failure,) = outcome.failed.values()
    assert (failure.request_id, failure.hook) == ("r0", "sample")
    assert isinstance(failure.error, RunnerContractError)
    assert outcome.sampled["r1"] == SampledToken(1)


def test_a_row_that_asks_for_nothing_needs_no_answer():
    assert execute(Picky(output=RunnerOutput({})), batch(row(0, chooses=False))).failed == {}


def test_an_error_the_runner_reports_is_passed_on():
    error = OSError("no such token")
    output = RunnerOutput({"r1": SampledToken(1)}, failed={"r0": error})
    outcome = execute(Picky(output=output), batch(row(0), row(1)))
    assert (outcome.failed["r0"].hook, outcome.failed["r0"].error) == ("sample", error)
    assert set(outcome.failed) == {"r0"}


@pytest.mark.parametrize("guilty", [{"s/0"}, {"s/1"}, {"s/3"}, {"s/0", "s/2"}])
def test_samples_that_fork_in_a_step_that_fails_still_get_their_copies(guilty):
    rig = Rig(config(40))
    rig.add(*samples("s", 4, tokens(39), max_tokens=12))
    rig.step()
    rig.broken = guilty
    rig.step()
    assert len(rig.batches[-1].copies) == 3
    rig.drain()
    for name in set(rig.requests) - guilty:
        rig.assert_output(rig.requests[name])
