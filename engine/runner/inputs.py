"""Lays out a scheduled batch as the arrays the model computes with."""

from dataclasses import dataclass

import numpy as np

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import NO_BLOCK
from engine.model.decoder import Indices
from kernels.layout import BatchLayout, Ints


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """One step's arrays; `sampled[i]` is the row whose last token is batch index `last[i]`."""

    token_ids: Ints
    layout: BatchLayout
    sampled: tuple[ScheduledRow, ...]
    last: Indices


def build_inputs(batch: ScheduledBatch, block_size: int, num_groups: int) -> BatchInputs:
    """Copy everything out of the batch: its block tables are only valid during the step.

    Every row has `num_groups` block tables; raises ValueError for one that has not.
    """
    rows = batch.rows
    counts = [len(row.token_ids) for row in rows]
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    firsts = np.fromiter((row.start for row in rows), np.int32, len(rows))
    token_ids = np.fromiter(
        (token for row in rows for token in row.token_ids), np.int32, int(starts[-1])
    )
    row_of_token = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    positions = np.arange(starts[-1], dtype=np.int32) + (firsts - starts[:-1])[row_of_token]
    sampled = [index for index, row in enumerate(rows) if row.samples]
    return BatchInputs(
        token_ids=token_ids,
        layout=BatchLayout(
            positions=positions,
            rows=row_of_token,
            row_starts=starts,
            first_positions=firsts,
            block_tables=_block_tables(rows, block_size, num_groups),
        ),
        sampled=tuple(rows[index] for index in sampled),
        last=np.array([starts[index + 1] - 1 for index in sampled], np.int64),
    )


def _block_tables(rows: tuple[ScheduledRow, ...], block_size: int, num_groups: int) -> np.ndarray:
    """[groups, rows, most blocks used]: tables cut to the blocks a row's positions need, padded."""
    used = [-(-(row.start + len(row.token_ids)) // block_size) for row in rows]
    tables = np.full((num_groups, len(rows), max(used, default=0)), NO_BLOCK, np.int32)
    for index, (row, blocks) in enumerate(zip(rows, used, strict=True)):
        for group, table in zip(tables, row.block_tables, strict=True):
            group[index, :blocks] = table[:blocks]
    return tables
