"""What a computed batch's rows yield: bounded memory, and failures kept apart."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.core.batch import ScheduledRow
from engine.core.request import SamplingParams
from engine.runner.outputs import read_outputs
from engine.runner.sampler import uniform

VOCABULARY = 50
WEIGHT = torch.randn(VOCABULARY, 6, generator=torch.Generator().manual_seed(0))
GREEDY = SamplingParams(max_tokens=4, temperature=0.0)
SCORED = SamplingParams(max_tokens=4, temperature=0.0, prompt_logprobs=2)


def row(name, start, count, params=GREEDY, *, samples=True, scored=range(0)):
    prompt = [(7 * p + len(name)) % VOCABULARY for p in range(start + count)]
    return ScheduledRow(
        name,
        prompt[start:],
        start,
        ([],),
        params,
        samples,
        prompt,
        output_token_ids=[],
        scored=scored,
    )


class Head:
    """A linear head over given hidden states; it remembers how many tokens it was asked for."""

    def __init__(self, hidden):
        self.hidden = hidden
        self.sizes = []

    def __call__(self, tokens):
        self.sizes.append(len(tokens))
        return (self.hidden[torch.from_numpy(tokens)] @ WEIGHT.T).numpy()


def run(rows, head=Head, draw=None):
    """The outputs, and each row's own hidden states; `head` makes a head from all of them."""
    counts = [len(row.token_ids) for row in rows]
    starts = np.cumsum([0, *counts])
    hidden = torch.randn(sum(counts), 6, generator=torch.Generator().manual_seed(1))
    sampled = [index for index, row in enumerate(rows) if row.samples]
    inputs = SimpleNamespace(
        layout=SimpleNamespace(row_starts=starts),
        sampled=tuple(rows[index] for index in sampled),
        last=np.array([starts[index + 1] - 1 for index in sampled], np.int64),
    )
    output = read_outputs(rows, inputs, head(hidden), draw)
    return output, dict(zip((row.request_id for row in rows), hidden.split(counts), strict=True))


def test_tokens_come_from_each_rows_last_position():
    output, hidden = run([row("a", 4, 1), row("bb", 0, 9, samples=False), row("ccc", 2, 5)])
    assert not output.failed
    assert not output.scored
    assert {name: token.token_id for name, token in output.sampled.items()} == {
        name: int((hidden[name][-1] @ WEIGHT.T).argmax()) for name in ("a", "ccc")
    }


@pytest.mark.parametrize(
    ("start", "count", "scored"),
    [
        (0, 12, range(1, 12)),  # a whole prompt
        (0, 12, range(1, 13)),  # a chunk; the next position is predicted here too
        (20, 12, range(21, 33)),  # a later chunk
        (20, 12, range(25, 32)),  # a chunk computed again in part after a preemption
        (0, 300, range(1, 300)),  # more than a slice
        (5, 1, range(6, 7)),
    ],
)
def test_a_position_is_scored_by_the_hidden_state_before_it(start, count, scored):
    target = row("scored", start, count, SCORED, samples=False, scored=scored)
    longer = [*target.prompt_token_ids, 3]  # the prompt goes on after the chunk
    target = replace(target, prompt_token_ids=longer)
    output, hidden = run([row("before", 3, 7), target, row("after", 0, 2)])
    scores = output.scored["scored"]
    assert len(scores) == len(scored)
    for position, got in zip(scored, scores, strict=True):
        expected = (hidden["scored"][position - 1 - start] @ WEIGHT.T).log_softmax(-1)
        assert got.token_id == longer[position]
        assert got.logprob == pytest.approx(float(expected[got.token_id]), abs=1e-5)
        assert got.rank == int((expected >= expected[got.token_id]).sum())
        top = expected.topk(2)
        assert [token for token, _ in got.top] == top.indices.tolist()
        assert [logprob for _, logprob in got.top] == pytest.approx(top.values.tolist(), abs=1e-5)


def test_a_long_prompt_never_needs_all_its_logits_at_once():
    heads = []

    def remembered(hidden):
        heads.append(Head(hidden))
        return heads[0]

    run([row("a", 0, 2048, SCORED, scored=range(1, 2048))], remembered)
    assert heads[0].sizes == [1, *[64] * 31, 63]


OUTSIDE = SamplingParams(max_tokens=1, temperature=0.0, logit_bias=((VOCABULARY, 1.0),))


def test_a_row_that_cannot_be_sampled_fails_alone():
    rows = [row("a", 0, 3), row("bad", 0, 3, OUTSIDE), row("c", 5, 1)]
    output, hidden = run(rows)
    assert set(output.failed) == {"bad"}
    assert isinstance(output.failed["bad"], IndexError)
    assert {name: token.token_id for name, token in output.sampled.items()} == {
        name: int((hidden[name][-1] @ WEIGHT.T).argmax()) for name in ("a", "c")
    }


def test_a_row_that_cannot_be_scored_fails_alone_and_yields_nothing():
    rows = [
        row("a", 0, 3, SCORED, scored=range(1, 3)),
        row("unasked", 0, 3, scored=range(1, 3)),
        row("unsampled", 0, 3, replace(SCORED, logit_bias=OUTSIDE.logit_bias), scored=range(1, 3)),
    ]
    output, _ = run(rows)
    assert set(output.sampled) == set(output.scored) == {"a"}
    assert set(output.failed) == {"unasked", "unsampled"}
    assert isinstance(output.failed["unasked"], ValueError)


def test_an_error_of_the_head_is_everyones():
    def broken(tokens):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run([row("a", 0, 3)], lambda hidden: broken)


def test_rows_that_need_no_logits_are_drawn_for_where_the_logits_are():
    heads, calls = [], []

    def remembered(hidden):
        heads.append(Head(hidden))
        return heads[0]

    def draw(tokens, draws):
        calls.append((tokens.tolist(), draws))
        return np.array([7, -1])

    nucleus = SamplingParams(max_tokens=4, temperature=0.5, top_k=9, top_p=0.8, min_p=0.1, seed=3)
    rows = [
        row("drawn", 4, 2, nucleus),
        row("ruled", 0, 3, replace(nucleus, min_tokens=2)),
        row("scored", 0, 2, replace(nucleus, logprobs=1)),
        row("unfinished", 0, 5, samples=False),
        row("no number", 1, 1),
    ]
    output, _ = run(rows, remembered, draw)
    ((tokens, draws),) = calls
    assert tokens == [1, 12]
    assert draws.temperatures.tolist() == [0.5, 0.0]
    assert draws.top_ks.tolist() == [9, 0]
    assert draws.top_ps.tolist() == [0.8, 1.0]
    assert draws.min_ps.tolist() == [0.1, 0.0]
    assert draws.points.tolist() == [uniform(3, 0), uniform(0, 0)]
    assert heads[0].sizes == [2]
    assert set(output.sampled) == {"drawn", "ruled", "scored"}
    assert output.sampled["drawn"].token_id == 7
    assert isinstance(output.failed["no number"], ArithmeticError)


def test_no_logits_are_computed_when_every_token_is_drawn():
    def none(_):
        return None

    output, _ = run([row("a", 0, 2), row("b", 0, 3)], none, lambda *_: np.array([1, 2]))
    assert {name: token.token_id for name, token in output.sampled.items()} == {"a": 1, "b": 2}
