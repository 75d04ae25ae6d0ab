"""Turns a computed batch into what each row yields: a token, prompt scores, or an error.

What goes wrong for one row is that row's failure and nobody else's.
"""

from collections.abc import Callable, Sequence

import numpy as np

from engine.core.batch import Logprobs, RunnerOutput, SampledToken, ScheduledRow
from engine.model.decoder import Indices, Logits
from engine.runner.inputs import BatchInputs
from engine.runner.logprobs import score
from engine.runner.sampler import sample

Head = Callable[[Indices], Logits]
"""Next-token logits [M, vocabulary] of these tokens of the batch."""

# Prompt positions whose logits exist at once: 64 of a 49,152-token vocabulary are 12 MB.
_SLICE = 64


def read_outputs(rows: Sequence[ScheduledRow], inputs: BatchInputs, head: Head) -> RunnerOutput:
    """What the rows asked for, once all their tokens are computed.

    An error that concerns no single row, one of `head` for all sampled tokens, is raised.
    """
    sampled: dict[str, SampledToken] = {}
    scored: dict[str, tuple[Logprobs, ...]] = {}
    failed: dict[str, Exception] = {}
    logits = _sampled_logits(inputs, head)
    starts = inputs.layout.row_starts.tolist()[:-1]
    for row, start in zip(rows, starts, strict=True):
        try:
            if row.scored:
                scored[row.request_id] = _score_prompt(row, start, head)
            if row.samples:
                sampled[row.request_id] = sample(
                    _numbers(logits[row.request_id]),
                    row.params,
                    row.prompt_token_ids,
                    row.output_token_ids,
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach other rows
            scored.pop(row.request_id, None)
            failed[row.request_id] = error
    return RunnerOutput(sampled, scored, failed)


def _sampled_logits(inputs: BatchInputs, head: Head) -> dict[str, Logits]:
    """Logits [vocabulary] of the last token of each row that samples, all from one pass."""
    if not inputs.sampled:
        return {}
    logits = head(inputs.last)
    return {row.request_id: values for row, values in zip(inputs.sampled, logits, strict=True)}


def _score_prompt(row: ScheduledRow, start: int, head: Head) -> tuple[Logprobs, ...]:
    """One score per position of `row.scored`, in order; the head is applied a slice at a time."""
    if row.params.prompt_logprobs is None:
        raise ValueError("prompt positions are to be scored, but `prompt_logprobs` is not set")
    scores: list[Logprobs] = []
    for first in range(row.scored.start, row.scored.stop, _SLICE):
        stop = min(first + _SLICE, row.scored.stop)
        # Position p is predicted at position p - 1.
        offset = start - row.start - 1
        logits = head(np.arange(first + offset, stop + offset))
        tokens = row.prompt_token_ids[first:stop]
        scores.extend(score(_numbers(logits), tokens, row.params.prompt_logprobs))
    return tuple(scores)


def _numbers(logits: Logits) -> Logits:
    """The logits, of any shape. Raises ArithmeticError where a position has nothing but NaN.

    A token chosen from those would be noise, and so would be what its sequence leaves in the cache.
    """
    if np.isnan(logits.max()) and np.isnan(logits).all(axis=-1).any():
        raise ArithmeticError("the model computed no logit that is a number")
    return logits
