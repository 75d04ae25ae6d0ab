"""Steps given to a decoder directly: rows with pages of their own, laid out as the engine does."""

import time
from collections.abc import Sequence
from itertools import count

import numpy as np

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.model.decoder import Decoder, DecoderState, Logits
from engine.runner.inputs import BatchInputs, build_inputs

BLOCK = 16
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


class Steps:
    """One decoder with `num_pages` pages, and what its steps take."""

    def __init__(self, decoder: Decoder, num_pages: int, max_tokens: int) -> None:
        self._groups = len(decoder.page_groups.windows)
        self._num_pages = num_pages
        self._state: DecoderState = decoder.open(num_pages, BLOCK, max_tokens)

    def batch(self, rows: Sequence[Sequence[int]], start: int) -> BatchInputs:
        """Every row's tokens at positions from `start` on, in pages that no other row has."""
        ids = count()
        scheduled = []
        for number, tokens in enumerate(rows):
            blocks = -(-(start + len(tokens)) // BLOCK)
            tables = tuple([next(ids) for _ in range(blocks)] for _ in range(self._groups))
            scheduled.append(ScheduledRow(str(number), tokens, start, tables, GREEDY, samples=True))
        if next(ids) > self._num_pages:
            raise ValueError(f"the rows need more than {self._num_pages} pages")
        total = sum(map(len, rows))
        return build_inputs(ScheduledBatch(0, tuple(scheduled), total), BLOCK, self._groups)

    def seconds(self, batch: BatchInputs) -> float:
        """One step: the forward pass, and logits of every row's last token."""
        began = time.perf_counter()
        self._state.forward(batch.token_ids, batch.layout)
        self._state.logits(batch.last)
        return time.perf_counter() - began

    def next_logits(self, tokens: Sequence[int], start: int) -> Logits:
        """Logits [1, vocabulary] after these tokens of one text whose first `start` are known."""
        batch = self.batch([tokens], start)
        self._state.forward(batch.token_ids, batch.layout)
        return self._state.logits(batch.last)

    def all_logits(self, tokens: Sequence[int]) -> Logits:
        """Logits [tokens, vocabulary] after each token of one text from its beginning."""
        batch = self.batch([tokens], 0)
        self._state.forward(batch.token_ids, batch.layout)
        return self._state.logits(np.arange(len(tokens), dtype=np.int64))
