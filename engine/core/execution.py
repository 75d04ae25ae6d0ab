"""Has a batch computed so that what goes wrong costs only the requests it went wrong for.

A runner that raises says nothing about which row is to blame. Rows do not depend on each other and
can be computed again, so the batch is halved until the rows that fail are alone: with one such row
among n, about 2 log2 n executions more; with all n failing, 2n - 1 in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.batch import (
    BlockCopy,
    Failure,
    Logprobs,
    RunnerOutput,
    SampledToken,
    ScheduledBatch,
    ScheduledRow,
)
from engine.core.errors import RunnerContractError
from engine.core.ports import ModelRunner


@dataclass(slots=True)
class Outcome:
    """What became of each row: every one that did not fail has all the answers it asked for."""

    sampled: dict[str, SampledToken] = field(default_factory=dict)
    scored: dict[str, tuple[Logprobs, ...]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)


def execute(runner: ModelRunner, batch: ScheduledBatch) -> Outcome:
    """Compute the batch; any Exception of the runner ends up in `failed`."""
    outcome = Outcome()
    pending = [batch] if batch.rows else []
    while pending:
        part = pending.pop()
        try:
            output = runner.execute(part)
        except Exception as error:  # noqa: BLE001 - reported for the row it belongs to
            if len(part.rows) > 1:
                pending.extend(_halves(part))
            else:
                request_id = part.rows[0].request_id
                outcome.failed[request_id] = Failure(request_id, "execute", error)
        else:
            _collect(part.rows, output, outcome)
    return outcome


def _halves(batch: ScheduledBatch) -> tuple[ScheduledBatch, ScheduledBatch]:
    """The batch's second and first half, each with the copies that its own rows need.

    A copy is not made again once a row has written to its target. Its source stays as it is
    for the whole step, in every position that matters: a running request holds it.
    """
    middle = len(batch.rows) // 2
    second, first = batch.rows[middle:], batch.rows[:middle]
    return _part(batch, second), _part(batch, first)


def _part(batch: ScheduledBatch, rows: tuple[ScheduledRow, ...]) -> ScheduledBatch:
    num_tokens = sum(len(row.token_ids) for row in rows)
    return ScheduledBatch(batch.step, rows, num_tokens, _copies_for(rows, batch.copies))


def _copies_for(rows: Sequence[ScheduledRow], copies: Sequence[BlockCopy]) -> tuple[BlockCopy, ...]:
    if not copies:
        return ()
    blocks = {block for row in rows for table in row.block_tables for block in table}
    return tuple(copy for copy in copies if copy.target in blocks)


def _collect(rows: Sequence[ScheduledRow], output: RunnerOutput, outcome: Outcome) -> None:
    """Take all answers; a row that is reported as an error, or lacks one, fails."""
    outcome.sampled.update(output.sampled)
    outcome.scored.update(output.scored)
    sampled, failed = output.sampled, output.failed
    for row in rows:
        request_id = row.request_id
        if failed and request_id in failed:
            error = failed[request_id]
        elif row.samples and request_id not in sampled:
            error = RunnerContractError(f"no token for request {request_id}")
        elif row.scored and len(output.scored.get(request_id, ())) != len(row.scored):
            error = RunnerContractError(f"not every score for request {request_id}")
        else:
            continue
        outcome.failed[request_id] = Failure(request_id, "sample", error)
