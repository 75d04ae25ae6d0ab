"""Applies a request's rules to its raw logits, before a token is chosen from them.

The rules and their order are those of vLLM's V1 sampler (`vllm/v1/sample/sampler.py`,
`ops/bad_words.py`, `ops/penalties.py`, `logits_processor/builtin.py`): `allowed_token_ids`,
`bad_words`, `min_tokens`, `logit_bias`, then the repetition, frequency and presence penalties;
the last two and the bias are also OpenAI's. Frequency and presence look at the output alone,
repetition at prompt and output, bad words at the output that the next token would complete.

Rules may contradict each other, as when every allowed token would complete a bad word. Then the
allow-list stands and the other rules yield: nothing outside it is ever chosen.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from engine.core.request import SamplingParams

Logits = np.ndarray[Any, np.dtype[np.float32]]
Ids = np.ndarray[Any, np.dtype[np.int64]]

_NEVER = np.float32(-np.inf)


def without_nan(logits: Logits) -> Logits:
    """The logits, of any shape, with -inf for NaN; themselves when they hold none."""
    if not np.isnan(logits.max()):  # the largest of numbers and NaN is NaN
        return logits
    return np.where(np.isnan(logits), _NEVER, logits)


def process(
    logits: Logits,
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
) -> Logits:
    """The logits [vocabulary] to choose from: `logits` itself, never written, if no rule applies.

    Some value is above -inf afterwards unless `allowed_token_ids` is empty or all of `logits` are
    -inf without an allow-list. Raises IndexError for an id outside the vocabulary.
    """
    if not has_rules(params, len(output_token_ids)):
        return logits
    allowed = _only_allowed(logits, params)
    processed = allowed.copy()
    _forbid_bad_words(processed, params, output_token_ids)
    _forbid_early_stop(processed, params, len(output_token_ids))
    # Past the largest float is infinity, which means what it should: always or never.
    with np.errstate(over="ignore"):
        _add_bias(processed, params)
        _penalize_repetition(processed, params, prompt_token_ids, output_token_ids)
        _penalize_output(processed, params, output_token_ids)
    return processed if processed.max() > _NEVER else _last_resort(allowed, params)


def has_rules(params: SamplingParams, num_outputs: int) -> bool:
    """Whether any rule could change the logits of output token `num_outputs`."""
    return (
        params.allowed_token_ids is not None
        or bool(params.bad_words or params.logit_bias)
        or num_outputs < params.min_tokens
        or params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )


def _only_allowed(logits: Logits, params: SamplingParams) -> Logits:
    if params.allowed_token_ids is None:
        return logits
    ids = _as_array(params.allowed_token_ids)
    allowed = np.full_like(logits, _NEVER)
    allowed[ids] = logits[ids]
    return allowed


@lru_cache(maxsize=64)
def _as_array(token_ids: tuple[int, ...]) -> Ids:
    """Kept, for a list may name a whole vocabulary, and comes again at every step."""
    return np.array(token_ids, np.int64)


def _forbid_bad_words(logits: Logits, params: SamplingParams, output: Sequence[int]) -> None:
    """Forbid each token that, after what was put out last, would complete a bad word."""
    for *beginning, last in params.bad_words:
        tail = output[len(output) - len(beginning) :] if len(beginning) <= len(output) else None
        if tail is not None and list(tail) == beginning:
            logits[last] = _NEVER


def _forbid_early_stop(logits: Logits, params: SamplingParams, num_outputs: int) -> None:
    """Forbid the stop tokens while fewer than `min_tokens` are out.

    A stop token beyond the vocabulary cannot be chosen anyway.
    """
    if num_outputs < params.min_tokens:
        logits[[token for token in params.stop_token_ids if token < len(logits)]] = _NEVER


def _add_bias(logits: Logits, params: SamplingParams) -> None:
    if params.logit_bias:
        token_ids, biases = zip(*params.logit_bias, strict=True)
        logits[np.array(token_ids, np.int64)] += np.array(biases, np.float32)


def _penalize_repetition(
    logits: Logits, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> None:
    """Make tokens seen before less likely, by a factor (Keskar et al. 2019, CTRL, section 4.1).

    Positive logits are divided by it and others multiplied, so that both shrink.
    """
    factor = np.float32(params.repetition_penalty)
    if factor == 1:
        return
    seen = np.concatenate((np.array(prompt, np.int64), np.array(output, np.int64)))
    values = logits[seen]  # a token seen twice gets the same value twice
    logits[seen] = np.where(values > 0, values / factor, values * factor)


def _penalize_output(logits: Logits, params: SamplingParams, output: Sequence[int]) -> None:
    """Subtract the frequency penalty per occurrence and the presence penalty once.

    As OpenAI's API reference has it: `logit - count * frequency - (count > 0) * presence`.
    """
    if not output or (params.frequency_penalty == 0 and params.presence_penalty == 0):
        return
    ids, counts = np.unique(np.array(output, np.int64), return_counts=True)
    logits[ids] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    logits[ids] -= np.float32(params.presence_penalty)


def _last_resort(allowed: Logits, params: SamplingParams) -> Logits:
    """What to choose from when the rules forbade everything: the allowed tokens as they were.

    If the model itself gave all of them no chance, they are equally likely.
    """
    if params.allowed_token_ids is not None and allowed.max() == _NEVER:
        even = allowed.copy()
        even[_as_array(params.allowed_token_ids)] = 0
        return even
    return allowed
