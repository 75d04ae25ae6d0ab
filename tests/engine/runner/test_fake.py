from dataclasses import replace

import pytest

from engine.core.batch import BlockCopy, SampledToken, ScheduledBatch, ScheduledRow
from engine.core.request import NO_BLOCK, SamplingParams
from engine.runner.fake import FakeRunner, FakeRunnerError, hashed_token

PROMPT = tuple(range(1, 11))
GREEDY = SamplingParams(max_tokens=8, temperature=0)


def row(request_id, token_ids, start, *tables, prompt=PROMPT, samples=True, scored=range(0)):
    return ScheduledRow(
        request_id, token_ids, start, tables, GREEDY, samples, prompt, scored=scored
    )


def batch(*rows, copies=()):
    return ScheduledBatch(1, rows, sum(len(each.token_ids) for each in rows), copies)


@pytest.fixture
def runner():
    return FakeRunner(8, block_size=4, vocab_size=100)


def test_the_next_token_depends_on_all_tokens_however_they_were_chunked(runner):
    whole = runner.execute(batch(row("whole", PROMPT, 0, [0, 1, 2]))).sampled["whole"]
    assert runner.execute(batch(row("parts", PROMPT[:6], 0, [3, 4], samples=False))).sampled == {}
    parts = runner.execute(batch(row("parts", PROMPT[6:], 6, [3, 4, 5]))).sampled["parts"]
    assert whole == parts == SampledToken(hashed_token(100)(PROMPT))


def test_a_shared_prefix_is_read_through_another_table(runner):
    runner.execute(batch(row("first", PROMPT, 0, [0, 1, 2])))
    output = runner.execute(batch(row("second", PROMPT[8:], 8, [0, 1, 3])))
    assert output.sampled["second"].token_id == hashed_token(100)(PROMPT)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (row("gap", PROMPT[9:], 9, [0, 1, 2]), "block 2 does not hold"),  # it was never written
        (row("short table", PROMPT[8:], 8, [0, 1]), "too short"),
        (row("swapped blocks", PROMPT[8:], 8, [1, 0, 3]), "block 1 does not hold"),
        (row("same block twice", PROMPT[8:], 8, [0, 0, 3]), "not sets of blocks"),
        (row("no such block", PROMPT[8:], 8, [0, 1, 9]), "not sets of blocks"),
        (row("a block gone", PROMPT[8:], 8, [NO_BLOCK, 1, 3]), "in the window is gone"),
        (row("empty", (), 8, [0, 1, 3]), "nothing to compute"),
        (row("other tokens", PROMPT[:2], 8, [0, 1, 3]), "not the request's"),
        (row("odd token", (100,), 0, [3], prompt=(100,)), "vocabulary"),
        (row("too early", PROMPT[8:9], 8, [0, 1, 3]), "samples"),
        (row("silent", PROMPT[8:], 8, [0, 1, 3], samples=False), "samples"),
        (row("scored before", PROMPT[8:], 8, [0, 1, 3], scored=range(8, 10)), "does not reach"),
        (row("scored beyond", PROMPT[8:], 8, [0, 1, 3], scored=range(9, 11)), "does not reach"),
    ],
)
def test_an_impossible_row_is_refused(runner, bad, why):
    runner.execute(batch(row("first", PROMPT[:8], 0, [0, 1], samples=False)))
    with pytest.raises(FakeRunnerError, match=why):
        runner.execute(batch(bad))


def test_a_block_reused_while_still_in_a_table_is_noticed(runner):
    runner.execute(batch(row("first", PROMPT, 0, [0, 1, 2])))
    runner.execute(batch(row("thief", PROMPT[:4], 0, [1], samples=False)))
    with pytest.raises(FakeRunnerError, match="block 1 does not hold"):
        runner.execute(batch(row("first", (5,), 10, [0, 1, 2], prompt=(*PROMPT, 5))))


def test_two_rows_may_not_write_one_block(runner):
    with pytest.raises(FakeRunnerError, match="two tables"):
        runner.execute(batch(row("a", PROMPT, 0, [0, 1, 2]), row("b", PROMPT, 0, [3, 4, 2])))


def test_a_hit_on_another_sequence_is_noticed(runner):
    other = PROMPT[::-1]
    runner.execute(batch(row("theirs", other, 0, [0, 1, 2], prompt=other)))
    with pytest.raises(FakeRunnerError, match="block 0 does not hold"):
        runner.execute(batch(row("mine", PROMPT[4:], 4, [0, 3, 4])))


def test_a_batch_must_count_its_tokens_and_name_each_request_once(runner):
    with pytest.raises(FakeRunnerError, match="num_tokens"):
        runner.execute(ScheduledBatch(1, (row("a", PROMPT, 0, [0, 1, 2]),), 3))
    with pytest.raises(FakeRunnerError, match="two rows"):
        runner.execute(batch(row("a", PROMPT, 0, [0, 1, 2]), row("a", PROMPT, 0, [3, 4, 5])))


def test_a_copied_block_goes_on_where_its_source_was(runner):
    runner.execute(batch(row("first", PROMPT, 0, [0, 1, 2])))
    forked = row("second", PROMPT[9:], 9, [0, 1, 3])
    with pytest.raises(FakeRunnerError, match="block 3 does not hold"):
        runner.execute(batch(forked))
    output = runner.execute(batch(forked, copies=(BlockCopy(2, 3),)))
    assert output.sampled["second"].token_id == hashed_token(100)(PROMPT)
    again = runner.execute(batch(forked, copies=(BlockCopy(2, 3),)))
    assert again == output


@pytest.mark.parametrize(
    "copies",
    [
        (BlockCopy(2, 3), BlockCopy(3, 4)),
        (BlockCopy(2, 3), BlockCopy(1, 3)),
        (BlockCopy(2, 5),),  # in no table
        (BlockCopy(9, 3),),
    ],
)
def test_copies_that_depend_on_their_order_or_serve_no_row_are_refused(runner, copies):
    runner.execute(batch(row("first", PROMPT, 0, [0, 1, 2])))
    with pytest.raises(FakeRunnerError, match="cop"):
        runner.execute(batch(row("second", PROMPT[9:], 9, [0, 1, 3]), copies=copies))


def test_each_group_needs_what_its_window_reaches_and_nothing_else():
    runner = FakeRunner(9, block_size=4, vocab_size=100, windows=(None, 3))
    whole = runner.execute(batch(row("a", PROMPT, 0, [0, 1, 2], [3, 4, 5])))
    longer = {"prompt": (*PROMPT, 7)}
    output = runner.execute(batch(row("a", (7,), 10, [0, 1, 2], [NO_BLOCK, NO_BLOCK, 5], **longer)))
    assert output.sampled["a"].token_id == hashed_token(100)((*PROMPT, 7))
    assert whole.sampled["a"].token_id == hashed_token(100)(PROMPT)
    for tables, why in (
        (([0, 1, 2], [NO_BLOCK, NO_BLOCK, NO_BLOCK]), "window is gone"),
        (([0, NO_BLOCK, 2], [3, 4, 5]), "window is gone"),
        (([3, 4, 5], [0, 1, 2]), "does not hold"),  # other layers
    ):
        with pytest.raises(FakeRunnerError, match=why):
            runner.execute(batch(row("a", (7,), 10, *tables, **longer)))


def test_log_probabilities_depend_on_the_tokens_before(runner):
    wants = replace(GREEDY, logprobs=2, prompt_logprobs=1)
    asking = replace(row("a", PROMPT, 0, [0, 1, 2], scored=range(1, 10)), params=wants)
    output = runner.execute(batch(asking))
    scores, sampled = output.scored["a"], output.sampled["a"].logprobs
    assert [score.token_id for score in scores] == list(PROMPT[1:])
    for position, score in enumerate(scores, 1):
        most_likely = hashed_token(100)(PROMPT[:position])
        assert score.top == ((most_likely, pytest.approx(-0.6931, abs=1e-4)),)
        assert score.rank == (PROMPT[position] - most_likely) % 100 + 1
        assert score.logprob == pytest.approx(score.rank * score.top[0][1])
    assert sampled.rank == 1
    assert sampled.top[0] == (sampled.token_id, sampled.logprob)
    assert len(sampled.top) == 2
