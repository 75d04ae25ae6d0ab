"""Computes scheduled batches with a real model; owns the KV pages.

Not thread-safe: one thread makes every call (the engine loop's).
"""

import torch

from engine.core.batch import RunnerOutput, ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.model.llama import LlamaModel
from engine.runner.inputs import BatchInputs, build_inputs
from engine.runner.outputs import read_outputs
from kernels.api import KvPages


class TorchRunner:
    """The `ModelRunner` over a loaded model and `num_blocks` pages of `block_size` tokens.

    A page holds the layers of one page group; batches carry a block table per group.
    Constructing it computes two throw-away tokens, so that compiled kernels and thread pools are
    ready before the first request.
    """

    def __init__(
        self,
        model: LlamaModel,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
    ) -> None:
        config = model.config
        self._model = model
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._pages = KvPages.allocate(
            model.page_groups.layers_per_group,
            num_blocks,
            config.num_kv_heads,
            config.head_dim,
            block_size,
        )
        self._warm_up()

    @staticmethod
    def num_blocks_for(model: LlamaModel, kv_memory_bytes: int, block_size: int) -> int:
        """How many blocks, each of one page group and `block_size` tokens, that much memory holds.

        A sequence needs blocks for each of its groups.
        """
        config, layers = model.config, model.page_groups.layers_per_group
        per_token = 2 * 4 * layers * config.num_kv_heads * config.head_dim
        return kv_memory_bytes // (per_token * block_size)

    @property
    def model_digest(self) -> bytes:
        """SHA-256 of what the model computes: it roots the prefix-cache keys."""
        return self._model.digest

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of every page group, None where attention is full: `CoreConfig.windows`."""
        return self._model.page_groups.windows

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """See `ModelRunner.execute`; raises ValueError for a batch beyond the declared sizes."""
        inputs = self._prepare(batch)
        hidden = self._hidden(inputs)
        return read_outputs(batch.rows, inputs, hidden, self._model.logits)

    @torch.inference_mode()
    def execute_logits(self, batch: ScheduledBatch) -> torch.Tensor:
        """Compute the batch but return logits [rows that sample, vocabulary] instead of tokens."""
        inputs = self._prepare(batch)
        return self._model.logits(self._hidden(inputs)[inputs.last])

    def _prepare(self, batch: ScheduledBatch) -> BatchInputs:
        """Make the batch's copies and lay out its tensors."""
        if len(batch.rows) > self._max_num_seqs or batch.num_tokens > self._max_num_batched_tokens:
            raise ValueError(
                f"batch of {len(batch.rows)} rows and {batch.num_tokens} tokens exceeds"
                f" {self._max_num_seqs} rows or {self._max_num_batched_tokens} tokens"
            )
        if batch.copies:
            sources = [copy.source for copy in batch.copies]
            self._pages.copy(sources, [copy.target for copy in batch.copies])
        return build_inputs(batch, self._block_size, len(self.windows))

    def _hidden(self, inputs: BatchInputs) -> torch.Tensor:
        """Hidden states [N, hidden] of every token; the keys and values are in the pages then."""
        if not len(inputs.token_ids):
            return torch.empty(0, self._model.config.hidden_size)
        return self._model.forward(inputs.token_ids, inputs.layout, self._pages)

    def _warm_up(self) -> None:
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        row = ScheduledRow("warm-up", (0,), 0, ((0,),) * len(self.windows), greedy, samples=True)
        self.execute(ScheduledBatch(step=0, rows=(row,), num_tokens=1))
        # The page must look unused again: a test compares pages, and stale keys help nobody.
        self._pages.keys[:, 0].zero_()
        self._pages.values[:, 0].zero_()
