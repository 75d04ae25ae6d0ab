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
            config.num_layers, num_blocks, config.num_kv_heads, config.head_dim, block_size
        )
        self._warm_up()

    @staticmethod
    def num_blocks_for(model: LlamaModel, kv_memory_bytes: int, block_size: int) -> int:
        """How many blocks of `block_size` tokens fit in that much KV memory."""
        config = model.config
        per_token = 2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim
        return kv_memory_bytes // (per_token * block_size)

    @property
    def model_digest(self) -> bytes:
        """SHA-256 of what the model computes: it roots the prefix-cache keys."""
        return self._model.digest

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        """See `ModelRunner.execute`; raises ValueError for a batch beyond the declared sizes."""
        inputs = self._inputs(batch)
        hidden = self._hidden(inputs)
        return read_outputs(batch.rows, inputs, hidden, self._model.logits)

    @torch.inference_mode()
    def execute_logits(self, batch: ScheduledBatch) -> torch.Tensor:
        """Compute the batch but return logits [rows that sample, vocabulary] instead of tokens."""
        inputs = self._inputs(batch)
        return self._model.logits(self._hidden(inputs)[inputs.last])

    def _inputs(self, batch: ScheduledBatch) -> BatchInputs:
        if len(batch.rows) > self._max_num_seqs or batch.num_tokens > self._max_num_batched_tokens:
            raise ValueError(
                f"batch of {len(batch.rows)} rows and {batch.num_tokens} tokens exceeds"
                f" {self._max_num_seqs} rows or {self._max_num_batched_tokens} tokens"
            )
        return build_inputs(batch, self._block_size)

    def _hidden(self, inputs: BatchInputs) -> torch.Tensor:
        """Hidden states [N, hidden] of every token; the keys and values are in the pages then."""
        if not len(inputs.token_ids):
            return torch.empty(0, self._model.config.hidden_size)
        return self._model.forward(inputs.token_ids, inputs.layout, self._pages)

    def _warm_up(self) -> None:
        greedy = SamplingParams(max_tokens=1, temperature=0.0)
        row = ScheduledRow("warm-up", (0,), 0, ((0,),), greedy, samples=True)
        self.execute(ScheduledBatch(step=0, rows=(row,), num_tokens=1))
        # The page must look unused again: a test compares pages, and stale keys help nobody.
        self._pages.keys[:, 0].zero_()
        self._pages.values[:, 0].zero_()
