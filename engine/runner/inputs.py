"""Lays out a scheduled batch as the tensors the model computes with."""

from dataclasses import dataclass

import numpy as np
import torch

from engine.core.batch import ScheduledBatch, ScheduledRow
from kernels.api import BatchLayout


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """One step's tensors; `sampled[i]` is the row whose last token is batch index `last[i]`."""

    token_ids: torch.Tensor
    layout: BatchLayout
    sampled: tuple[ScheduledRow, ...]
    last: torch.Tensor


def build_inputs(batch: ScheduledBatch, block_size: int) -> BatchInputs:
    """Copy everything out of the batch: its block tables are only valid during the step."""
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
            block_tables=torch.from_numpy(_block_tables(rows, block_size)),
        ),
        sampled=tuple(rows[index] for index in sampled),
        last=torch.tensor([int(starts[index + 1]) - 1 for index in sampled], dtype=torch.int64),
    )


def _block_tables(rows: tuple[ScheduledRow, ...], block_size: int) -> np.ndarray:
    """[rows, most blocks used], each row cut to the blocks its positions need, zero-padded."""
    used = [-(-(row.start + len(row.token_ids)) // block_size) for row in rows]
    tables = np.zeros((len(rows), max(used, default=0)), np.int32)
    for index, (row, blocks) in enumerate(zip(rows, used, strict=True)):
        tables[index, :blocks] = row.block_tables[0][:blocks]
    return tables
