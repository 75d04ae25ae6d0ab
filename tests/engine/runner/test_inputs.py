import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import NO_BLOCK, SamplingParams
from engine.runner.inputs import build_inputs

BLOCK = 4
GROUPS = 2
PARAMS = SamplingParams(max_tokens=1)

ROWS = st.lists(
    st.tuples(
        st.integers(0, 30), st.lists(st.integers(0, 999), min_size=1, max_size=9), st.booleans()
    ),
    min_size=1,
    max_size=5,
)


def page_of(group, row, block):
    return 1000 * group + 100 * row + block


def make_batch(rows):
    """Block tables are one entry longer than needed: the scheduler may have grown them ahead."""
    return ScheduledBatch(
        step=1,
        rows=tuple(
            ScheduledRow(
                request_id=str(index),
                token_ids=tokens,
                start=start,
                block_tables=tuple(
                    [page_of(group, index, b) for b in range((start + len(tokens)) // BLOCK + 2)]
                    for group in range(GROUPS)
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
    inputs = build_inputs(make_batch(rows), BLOCK, GROUPS)
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
            block = position // BLOCK
            for group in range(GROUPS):
                page = inputs.layout.block_tables[group, index, block]
                assert page == page_of(group, index, block)
    assert inputs.layout.row_starts[-1] == at
    assert inputs.token_ids.tolist() == tokens
    assert inputs.layout.positions.tolist() == positions
    assert inputs.last.tolist() == last
    assert [row.request_id for row in inputs.sampled] == [
        str(index) for index, row in enumerate(rows) if row[2]
    ]


def test_an_empty_batch():
    inputs = build_inputs(ScheduledBatch(1, (), 0), BLOCK, GROUPS)
    assert len(inputs.token_ids) == 0
    assert inputs.sampled == ()


def test_block_tables_are_copied_and_padded():
    table = [NO_BLOCK, 8]
    rows = (
        ScheduledRow("a", [1], 5, (table,), PARAMS, samples=True),
        ScheduledRow("b", [1], 0, ([3, 9],), PARAMS, samples=True),
    )
    inputs = build_inputs(ScheduledBatch(1, rows, 2), BLOCK, num_groups=1)
    table[:] = [0, 0]
    assert inputs.layout.block_tables.tolist() == [[[NO_BLOCK, 8], [3, NO_BLOCK]]]
    assert inputs.layout.block_tables.flags["C_CONTIGUOUS"]


@pytest.mark.parametrize("tables", [(), ([0],), ([0], [0], [0])])
def test_a_row_without_a_table_for_every_group_is_refused(tables):
    row = ScheduledRow("a", [1], 0, tables, PARAMS, samples=True)
    with pytest.raises(ValueError, match="zip"):
        build_inputs(ScheduledBatch(1, (row,), 1), BLOCK, GROUPS)
