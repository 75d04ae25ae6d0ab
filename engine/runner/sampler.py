"""Chooses the next token of one sequence from its logits.

`sample` applies the request's rules (`engine.runner.logits`), then chooses. Greedy takes the
largest logit, the lowest id on ties. Otherwise the candidates are, in vLLM's order: the tokens at
least `min_p` times as likely as the likeliest after temperature (Nguyen et al. 2024, min-p), of
those the `top_k` largest logits (lower id first on ties), and of those the shortest run, largest
first, whose share of the probability reaches `top_p` (Holtzman et al. 2019, nucleus). One uniform
number from the stream keyed by (seed, output index) picks among them in order of id. A row's
choice depends on nothing but its own logits, tokens and key.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.core.batch import SampledToken
from engine.core.request import SamplingParams
from engine.runner.logits import Ids, Logits, process, without_nan
from engine.runner.logprobs import largest, score

Probabilities = np.ndarray[Any, np.dtype[np.float64]]

_KEY_MASK = (1 << 64) - 1
# Enough candidates for nearly every nucleus; sorting all weights is the exact way out.
_FIRST_CANDIDATES = 1024


def sample(
    logits: Logits,
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
) -> SampledToken:
    """The token after prompt and output, with the log-probabilities asked for.

    `logits` [vocabulary] are the model's own; they may be infinite, NaN counts as -inf. Raises
    IndexError if a rule names an id outside the vocabulary.
    """
    logits = without_nan(logits)
    processed = process(logits, params, prompt_token_ids, output_token_ids)
    token_id = choose(processed, params, len(output_token_ids))
    if params.logprobs is None:
        return SampledToken(token_id)
    (logprobs,) = score(logits[None], (token_id,), params.logprobs)
    return SampledToken(token_id, logprobs)


def choose(logits: Logits, params: SamplingParams, output_index: int) -> int:
    """The token id chosen from processed logits [vocabulary] without NaN."""
    if params.temperature <= 0 or params.top_k == 1:
        return int(logits.argmax())
    kept, weights = candidates(logits, params)
    return _pick(kept, weights, uniform(params.seed, output_index))


def candidates(logits: Logits, params: SamplingParams) -> tuple[Ids | None, Probabilities]:
    """The ids to draw from, ascending (None: all), and the weight of every id of the vocabulary."""
    weights = _softmax_weights(logits, params.temperature)
    if params.min_p > 0:
        weights[weights < params.min_p] = 0  # of the likeliest, whose weight is 1
    return _kept(weights, logits, params), weights


def uniform(seed: int, output_index: int) -> float:
    """A number in [0, 1), a pure function of (seed mod 2^64, output index)."""
    bits = np.random.Philox(key=seed & _KEY_MASK, counter=[0, output_index, 0, 0]).random_raw()
    return (int(bits) >> 11) * 2.0**-53


def _softmax_weights(logits: Logits, temperature: float) -> Probabilities:
    """exp((logit - largest) / temperature): 1 for the largest, never all zero, never NaN."""
    top = logits.max()
    if not np.isfinite(top):
        # Only the infinitely likely remain; if all are -inf, all are equally (un)likely.
        return np.where(logits == top, 1.0, 0.0)
    # A tiny temperature may overflow to -inf, whose exponential is the right one: 0.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(top)) / temperature
    weights: Probabilities = np.exp(scaled)
    return weights


def _kept(weights: Probabilities, logits: Logits, params: SamplingParams) -> Ids | None:
    """Ids that survive top-k and top-p in ascending order; None when all do."""
    size = len(weights)
    top_k = min(params.top_k, size) if params.top_k > 0 else size
    if params.top_p >= 1:
        return None if top_k == size else np.sort(largest(logits, top_k))
    if top_k < size:
        ranked = largest(logits, top_k)
        return np.sort(_nucleus(ranked, weights, params.top_p, float(weights[ranked].sum())))
    total = float(weights.sum())
    ranked = largest(logits, min(_FIRST_CANDIDATES, size))
    if float(weights[ranked].sum()) < params.top_p * total:
        return _wide_nucleus(logits, weights, params.top_p * total)
    return np.sort(_nucleus(ranked, weights, params.top_p, total))


def _nucleus(ranked: Ids, weights: Probabilities, top_p: float, total: float) -> Ids:
    """The shortest prefix of `ranked` whose weights reach `top_p` of `total`; at least one."""
    reached = np.cumsum(weights[ranked])
    return ranked[: int(np.searchsorted(reached, top_p * total)) + 1]


def _wide_nucleus(logits: Logits, weights: Probabilities, wanted: float) -> Ids:
    """`_nucleus` of the whole vocabulary, in ascending order: ranking every id would take longer.

    A larger logit never weighs less, so the sorted weights are in the order of the logits.
    """
    reached = np.cumsum(np.sort(weights)[::-1])
    count = min(int(np.searchsorted(reached, wanted)) + 1, len(logits))
    threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
    kept = logits >= threshold
    excess = int(kept.sum()) - count
    if excess:  # of equal ones the lower ids stay
        kept[np.flatnonzero(logits == threshold)[-excess:]] = False
    return np.flatnonzero(kept)


def _pick(kept: Ids | None, weights: Probabilities, point: float) -> int:
    """The first id at which the running sum of weights exceeds `point` of the whole."""
    if kept is not None:
        weights = weights[kept]
    sums = np.cumsum(weights)
    index = int(np.searchsorted(sums, point * sums[-1], side="right"))
    if index == len(sums):  # point * sum rounded up to the sum itself
        index = int(np.flatnonzero(weights)[-1])
    return index if kept is None else int(kept[index])
