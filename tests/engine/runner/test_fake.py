import pytest

from engine.core.batch import SampledToken, ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.runner.fake import FakeRunner, FakeRunnerError, hashed_token

PROMPT = tuple(range(1, 11))
GREEDY = SamplingParams(max_tokens=8, temperature=0)


def row(request_id, token_ids, start, table, *, samples=True):
    return ScheduledRow(request_id, token_ids, start, (table,), GREEDY, samples)


def batch(*rows):
    return ScheduledBatch(1, rows, sum(len(each.token_ids) for each in rows))


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
    "bad",
    [
        row("gap", PROMPT[:2], 9, [0, 1, 2]),  # position 8 was never written
        row("short table", PROMPT[:2], 8, [0, 1]),
        row("swapped blocks", PROMPT[:2], 8, [1, 0, 3]),
        row("same block twice", PROMPT[:2], 8, [0, 0, 3]),
        row("no such block", PROMPT[:2], 8, [0, 1, 9]),
        row("empty", (), 8, [0, 1, 3]),
        row("odd token", (100,), 8, [0, 1, 3]),
    ],
)
def test_an_impossible_row_is_refused(runner, bad):
    runner.execute(batch(row("first", PROMPT[:8], 0, [0, 1])))
    with pytest.raises(FakeRunnerError):
        runner.execute(batch(bad))


def test_a_block_reused_while_still_in_a_table_is_noticed(runner):
    runner.execute(batch(row("first", PROMPT, 0, [0, 1, 2])))
    runner.execute(batch(row("thief", PROMPT[:4], 0, [1])))
    with pytest.raises(FakeRunnerError, match="does not hold position 4"):
        runner.execute(batch(row("first", (5,), 10, [0, 1, 2])))


def test_two_rows_may_not_write_one_block(runner):
    with pytest.raises(FakeRunnerError, match="two tables"):
        runner.execute(batch(row("a", PROMPT[:2], 0, [0]), row("b", PROMPT[:2], 0, [0])))


def test_a_hit_on_another_sequence_is_noticed_when_the_true_tokens_are_known():
    truth = {"mine": PROMPT, "theirs": PROMPT[::-1]}
    runner = FakeRunner(8, block_size=4, vocab_size=100, known_tokens=truth.__getitem__)
    runner.execute(batch(row("theirs", PROMPT[::-1], 0, [0, 1, 2])))
    with pytest.raises(FakeRunnerError, match="another's token"):
        runner.execute(batch(row("mine", PROMPT[4:], 4, [0, 3, 4])))


def test_a_batch_must_count_its_tokens_and_name_each_request_once(runner):
    with pytest.raises(FakeRunnerError, match="num_tokens"):
        runner.execute(ScheduledBatch(1, (row("a", PROMPT[:2], 0, [0]),), 3))
    with pytest.raises(FakeRunnerError, match="two rows"):
        runner.execute(batch(row("a", (1,), 0, [0]), row("a", (1,), 0, [1])))
