"""Computes scheduled batches with a real model; owns its pages.

Not thread-safe: one thread makes every call (the engine loop's).
"""

from engine.core.batch import RunnerOutput, ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.model.decoder import Decoder, DrawingState, Logits
from engine.runner.inputs import BatchInputs, build_inputs
from engine.runner.outputs import read_outputs


class DecoderRunner:
    """The `ModelRunner` over a loaded model and `num_blocks` pages of `block_size` tokens.

    A page holds the layers of one page group; batches carry a block table per group.
    Constructing it computes one throw-away token, so that thread pools and compiled kernels are
    ready before the first request.
    """

    def __init__(
        self,
        model: Decoder,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self.state = model.open(num_blocks, block_size, max_num_batched_tokens)
        self._draw = self.state.draw if isinstance(self.state, DrawingState) else None
        self._warm_up()

    @staticmethod
    def num_blocks_for(model: Decoder, kv_memory_bytes: int, block_size: int) -> int:
        """How many blocks, each of one page group and `block_size` tokens, that much memory holds.

        A sequence needs blocks for each of its groups.
        """
        return kv_memory_bytes // model.page_bytes(block_size)

    @property
    def model_digest(self) -> bytes:
        """SHA-256 of what the model computes: it roots the prefix-cache keys."""
        return self._model.digest

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of every page group, None where attention is full: `CoreConfig.windows`."""
        return self._model.page_groups.windows

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """See `ModelRunner.execute`; raises ValueError for a batch beyond the declared sizes."""
        inputs = self._compute(batch)
        return read_outputs(batch.rows, inputs, self.state.logits, self._draw)

    def execute_logits(self, batch: ScheduledBatch) -> Logits:
        """Compute the batch but return logits [rows that sample, vocabulary] instead of tokens."""
        inputs = self._compute(batch)
        return self.state.logits(inputs.last)

    def _compute(self, batch: ScheduledBatch) -> BatchInputs:
        """Make the batch's copies and compute its tokens; their keys and values are stored then."""
        if len(batch.rows) > self._max_num_seqs or batch.num_tokens > self._max_num_batched_tokens:
            raise ValueError(
                f"batch of {len(batch.rows)} rows and {batch.num_tokens} tokens exceeds"
                f" {self._max_num_seqs} rows or {self._max_num_batched_tokens} tokens"
            )
        if batch.copies:
            sources = [copy.source for copy in batch.copies]
            self.state.copy_pages(sources, [copy.target for copy in batch.copies])
        inputs = build_inputs(batch, self._block_size, len(self.windows))
        if len(inputs.token_ids):
            self.state.forward(inputs.token_ids, inputs.layout)
        return inputs

    def _warm_up(self) -> None:
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        row = ScheduledRow("warm-up", (0,), 0, ((0,),) * len(self.windows), greedy, samples=True)
        self.execute(ScheduledBatch(step=0, rows=(row,), num_tokens=1))
        # The page must look unused again: a test compares pages, and stale keys help nobody.
        self.state.clear_page(0)
