from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.runner.inputs import build_inputs

BLOCK = 4
PARAMS = SamplingParams(max_tokens=1)

ROWS = st.lists(
    st.tuples(
        st.integers(0, 30), st.lists(st.integers(0, 999), min_size=1, max_size=9), st.booleans()
    ),
    min_size=1,
    max_size=5,
)


def make_batch(rows):
    """Block tables are one entry longer than needed: the scheduler may have grown them ahead."""
    return ScheduledBatch(
        step=1,
        rows=tuple(
            ScheduledRow(
                request_id=str(index),
                token_ids=tokens,
                start=start,
                block_tables=(
                    [100 * index + b for b in range((start + len(tokens)) // BLOCK + 2)],
                ),
                params=PARAMS,
                samples=samples,
            )
            for index, (start, tokens, samples) in enumerate(rows)
        ),
        num_tokens=sum(len(tokens) for _, tokens, _ in rows),
    )


@settings(deadline=None)
@given(rows=ROWS)
def test_every_token_knows_its_sequence_position_and_page(rows):
    inputs = build_inputs(make_batch(rows), BLOCK)
    tokens, positions, last, at = [], [], [], 0
    for index, (start, row_tokens, samples) in enumerate(rows):
        assert inputs.layout.row_starts[index] == at
        assert inputs.layout.first_positions[index] == start
        tokens += row_tokens
        positions += range(start, start + len(row_tokens))
        at += len(row_tokens)
        if samples:
            last.append(at - 1)
        for position in range(start + len(row_tokens)):
            page = inputs.layout.block_tables[index, position // BLOCK]
            assert page == 100 * index + position // BLOCK
    assert inputs.layout.row_starts[-1] == at
    assert inputs.token_ids.tolist() == tokens
    assert inputs.layout.positions.tolist() == positions
    assert inputs.last.tolist() == last
    assert [row.request_id for row in inputs.sampled] == [
        str(index) for index, row in enumerate(rows) if row[2]
    ]


def test_an_empty_batch():
    inputs = build_inputs(ScheduledBatch(1, (), 0), BLOCK)
    assert len(inputs.token_ids) == 0
    assert inputs.sampled == ()


def test_the_block_table_is_copied():
    table = [7, 8]
    row = ScheduledRow("a", [1], 5, (table,), PARAMS, samples=True)
    inputs = build_inputs(ScheduledBatch(1, (row,), 1), BLOCK)
    table[:] = [0, 0]
    assert inputs.layout.block_tables.tolist() == [[7, 8]]
