"""Turns a computed batch into what each row yields: a token, prompt scores, or an error.

What goes wrong for one row is that row's failure and nobody else's.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np

from engine.core.batch import Logprobs, RunnerOutput, SampledToken, ScheduledRow
from engine.model.decoder import Indices, Logits
from engine.runner.inputs import BatchInputs
from engine.runner.logits import has_rules
from engine.runner.logprobs import score
from engine.runner.sampler import sample, uniform
from kernels.draws import Draws

Head = Callable[[Indices], Logits]
"""Next-token logits [M, vocabulary] of these tokens of the batch."""

Drawer = Callable[[Indices, Draws], Indices]
"""The token drawn after each of these tokens of the batch, -1 where no logit is a number."""

# Prompt positions whose logits exist at once: 64 of a 49,152-token vocabulary are 12 MB.
_SLICE = 64
_NO_NUMBER = "the model computed no logit that is a number"


def read_outputs(
    rows: Sequence[ScheduledRow], inputs: BatchInputs, head: Head, draw: Drawer | None = None
) -> RunnerOutput:
    """What the rows asked for, once all their tokens are computed.

    With `draw`, rows that ask for a token by probability alone get it there; logits are looked at
    for rules and log-probabilities only. An error that concerns no single row, one of `head` for
    all sampled tokens, is raised.
    """
    sampled: dict[str, SampledToken] = {}
    scored: dict[str, tuple[Logprobs, ...]] = {}
    failed: dict[str, Exception] = {}
    drawn = {} if draw is None else _drawn(inputs, draw)
    logits = _sampled_logits(inputs, head, drawn)
    starts = inputs.layout.row_starts.tolist()[:-1]
    for row, start in zip(rows, starts, strict=True):
        try:
            if row.scored:
                scored[row.request_id] = _score_prompt(row, start, head)
            if row.request_id in drawn:
                sampled[row.request_id] = _existing(drawn[row.request_id])
            elif row.samples:
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


def _drawn(inputs: BatchInputs, draw: Drawer) -> dict[str, int]:
    """The tokens of rows without rules and log-probabilities, all from one pass."""
    plain = [
        index
        for index, row in enumerate(inputs.sampled)
        if row.params.logprobs is None and not has_rules(row.params, len(row.output_token_ids))
    ]
    if not plain:
        return {}
    rows = [inputs.sampled[index] for index in plain]
    draws = Draws.of(
        [
            (p.temperature, p.top_k, p.top_p, p.min_p, uniform(p.seed, len(row.output_token_ids)))
            for row in rows
            for p in (row.params,)
        ]
    )
    tokens = draw(inputs.last[plain], draws).tolist()
    return {row.request_id: token for row, token in zip(rows, tokens, strict=True)}


def _existing(token_id: int) -> SampledToken:
    """A drawn token; raises ArithmeticError where there was none to draw."""
    if token_id < 0:
        raise ArithmeticError(_NO_NUMBER)
    return SampledToken(token_id)


def _sampled_logits(inputs: BatchInputs, head: Head, without: Collection[str]) -> dict[str, Logits]:
    """Logits [vocabulary] of the last token of each row that samples, all from one pass."""
    rows = [index for index, row in enumerate(inputs.sampled) if row.request_id not in without]
    if not rows:
        return {}
    logits = head(inputs.last[rows])
    return {
        inputs.sampled[index].request_id: values for index, values in zip(rows, logits, strict=True)
    }


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
        raise ArithmeticError(_NO_NUMBER)
    return logits
