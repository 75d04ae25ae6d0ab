"""Log-probabilities of tokens under raw logits, before any sampling rule or temperature.

That is what vLLM reports by default (`logprobs_mode="raw_logprobs"`): the log-softmax of what the
model computed. A token's rank is the number of tokens at least as likely as it, itself included.
"""

from collections.abc import Sequence

import numpy as np

from engine.core.batch import Logprobs
from engine.runner.logits import Ids, Logits, without_nan


def score(logits: Logits, token_ids: Sequence[int], count: int) -> tuple[Logprobs, ...]:
    """For each row of logits [M, vocabulary], its token's log-probability and the `count` largest.

    M is at least 1; a token may be any of the vocabulary; `count` beyond it means all of it. NaN
    counts as -inf; infinite logits, or -inf if there is nothing else, share the probability.
    """
    logits = without_nan(logits)
    relative = _relative_to_largest(logits)
    # Sums of at most 1 per token: float32 terms are exact enough, a float32 sum is not.
    totals = np.log(np.exp(relative).sum(axis=1, dtype=np.float64))
    chosen = logits[np.arange(len(logits)), np.array(token_ids, np.int64)]
    ranks = (logits >= chosen[:, None]).sum(axis=1)
    return tuple(
        Logprobs(
            token_id=int(token),
            logprob=float(row[token] - total),
            rank=int(rank),
            top=tuple((int(i), float(row[i] - total)) for i in largest(values, count)),
        )
        for token, row, values, total, rank in zip(
            token_ids, relative, logits, totals, ranks, strict=True
        )
    )


def largest(logits: Logits, count: int) -> Ids:
    """Ids of the `count` largest of logits [vocabulary], largest first, then lower id first."""
    if count == 0:
        return np.empty(0, np.int64)
    if count < len(logits):
        threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
        candidates = np.flatnonzero(logits >= threshold)
    else:
        candidates = np.arange(len(logits))
    order = np.argsort(-logits[candidates], kind="stable")
    return candidates[order][:count]


def _relative_to_largest(logits: Logits) -> Logits:
    """Each row less its largest value: at most 0, and 0 somewhere."""
    tops = logits.max(axis=1, keepdims=True)
    finite = np.isfinite(tops)
    # Further down than the largest float is as good as impossible.
    with np.errstate(over="ignore", invalid="ignore"):
        relative: Logits = logits - tops
    if finite.all():
        return relative
    return np.where(finite, relative, np.where(logits == tops, np.float32(0), np.float32(-np.inf)))
