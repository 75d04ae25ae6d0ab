"""The port through which the engine core has a batch computed."""

from typing import Protocol

from engine.core.batch import RunnerOutput, ScheduledBatch


class ModelRunner(Protocol):
    """Computes batches; owns the KV pages, addressed by block id. Implemented by torch and fake."""

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """Make the copies, compute every row, write its keys and values, answer where asked.

        What fails for one row is told in `failed`. If the batch cannot be computed, any Exception
        will do: parts of the batch are then executed again, to find the rows that are to blame.
        """
        ...
