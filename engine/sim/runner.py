"""A runner that computes nothing: it says how long the batch would take and invents its tokens.

A request's output is a run of token ids that starts at its seed, so whoever knows the seed knows
the answer beforehand and can put it into a later prompt, where the prefix cache must find it.
"""

from engine.core.batch import RunnerOutput, SampledToken, ScheduledBatch
from engine.sim.step_time import StepTime, work_of


class SimRunner:
    """Implements `ModelRunner`; adds up the seconds and the rows of its batches until `forget`."""

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self.forget()

    def forget(self) -> None:
        """Count from zero again."""
        self.spent_s = 0.0
        self.num_rows = 0

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """Answer every row that samples, in no time at all."""
        self.spent_s += self._step_time.seconds(work_of(batch))
        self.num_rows += len(batch.rows)
        return RunnerOutput(
            {
                row.request_id: SampledToken(row.params.seed + len(row.output_token_ids))
                for row in batch.rows
                if row.samples
            }
        )
