"""A row for which the model computed no number fails alone, and leaves nothing in the cache."""

import numpy as np

from engine.core.batch import RunnerOutput
from engine.core.engine_core import EngineCore
from engine.core.request import FinishReason
from tests.engine.core.rig import config, request, tokens
from tests.engine.runner.test_outputs import SCORED, Head, row, run


class Broken(Head):
    """Computes NaN for the tokens at some places, counted over all that it is asked for."""

    def __init__(self, hidden, *places):
        super().__init__(hidden)
        self.places = places

    def __call__(self, tokens):
        first = sum(self.sizes)
        logits = super().__call__(tokens)
        for place in self.places:
            if first <= place < first + len(tokens):
                logits[place - first] = np.nan
        return logits


def broken(*places):
    return lambda hidden: Broken(hidden, *places)


def test_only_the_row_without_numbers_fails():
    output, _ = run([row("a", 4, 1), row("bb", 2, 5), row("ccc", 0, 3)], broken(1))
    assert set(output.sampled) == {"a", "ccc"}
    assert isinstance(output.failed["bb"], ArithmeticError)


def test_neither_are_scores_made_of_nothing():
    rows = [row("a", 0, 12, SCORED, samples=False, scored=range(1, 12)), row("bb", 2, 5)]
    output, _ = run(rows, broken(5))  # the first is that of the sampled token
    assert not output.scored
    assert set(output.failed) == {"a"}
    assert set(output.sampled) == {"bb"}


class NumbersRunOut:
    """A runner whose model computes NaN from a prompt of 40 tokens on."""

    def execute(self, batch):
        sampled, failed = {}, {}
        for each in batch.rows:
            output, _ = run([each], broken(0) if len(each.token_ids) > 40 else Head)
            sampled |= output.sampled
            failed |= output.failed
        return RunnerOutput(sampled, failed=failed)


def test_nothing_of_a_prompt_without_numbers_is_cached():
    core = EngineCore(config(16), NumbersRunOut())
    bad, good = request("bad", tokens(48)), request("good", tokens(40, seed=1))
    for wanted in (bad, good):
        core.add(wanted)
    report = core.step()
    assert [failure.hook for failure in report.failed] == ["sample"]
    while core.has_work():
        core.step()
    assert (bad.finish_reason, good.finish_reason) == (FinishReason.ERROR, FinishReason.LENGTH)
    assert core.stats().cached_blocks == 2  # of the good one
