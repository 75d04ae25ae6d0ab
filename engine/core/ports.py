"""The port through which the engine core has a batch computed."""

from typing import Protocol

from engine.core.batch import RunnerOutput, ScheduledBatch


class ModelRunner(Protocol):
    """Computes batches; owns the KV pages, addressed by block id. Implemented by torch and fake."""

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """Compute every row, write its keys and values, sample where asked."""
        ...
