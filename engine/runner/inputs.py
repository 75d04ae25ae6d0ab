"""Lays out a scheduled batch as the tensors the model computes with."""

from dataclasses import dataclass

import numpy as np
import torch

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import NO_BLOCK
from kernels.api import BatchLayout


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """One step's tensors; `sampled[i]` is the row whose last token is batch index `last[i]`."""

    token_ids: torch.Tensor
    layout: BatchLayout
    sampled: tuple[ScheduledRow, ...]
    last: torch.Tensor


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
        (token for row in rows for token in row.token_ids), np.int64, int(starts[-1])
    )
    offsets = np.arange(starts[-1], dtype=np.int64)
    positions = offsets + np.repeat(firsts - starts[:-1], counts)
    sampled = [index for index, row in enumerate(rows) if row.samples]
    return BatchInputs(
        token_ids=torch.from_numpy(token_ids),
        layout=BatchLayout(
            positions=torch.from_numpy(positions),
            row_starts=torch.from_numpy(starts),
            first_positions=torch.from_numpy(firsts),
            block_tables=torch.from_numpy(_block_tables(rows, block_size, num_groups)),
        ),
        sampled=tuple(rows[index] for index in sampled),
        last=torch.tensor([int(starts[index + 1]) - 1 for index in sampled], dtype=torch.int64),
    )


def _block_tables(rows: tuple[ScheduledRow, ...], block_size: int, num_groups: int) -> np.ndarray:
    """[groups, rows, most blocks used]: tables cut to the blocks a row's positions need, padded."""
    used = [-(-(row.start + len(row.token_ids)) // block_size) for row in rows]
    tables = np.full((num_groups, len(rows), max(used, default=0)), NO_BLOCK, np.int32)
    for index, (row, blocks) in enumerate(zip(rows, used, strict=True)):
        for group, table in zip(tables, row.block_tables, strict=True):
            group[index, :blocks] = table[:blocks]
    return tables
