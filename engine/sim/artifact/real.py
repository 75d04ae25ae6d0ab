"""A trace of 27 clients with the published counts and lengths of the artifact's real one.

The original holds 1,500 requests to an arena of models, each model a client. Known of it are the
requests per client, the mean and percentiles of lengths, and that two in five requests come in the
first 45 % of the time. The rebuilt trace has exactly these counts; its lengths are a quantile
function through the percentiles; its times are random, at a rate that rises evenly.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

Vector = np.ndarray[Any, np.dtype[np.float64]]

SECONDS = 600.0
COUNTS = (
    *(296, 262, 199, 120, 67, 66, 56, 46, 44, 43, 40, 36, 31, 26),
    *(25, 23, 22, 22, 19, 19, 12, 11, 7, 3, 2, 2, 1),
)
# Shares of the requests, and the lengths in tokens that as many do not exceed.
INPUT_QUANTILES = ((0.0, 4), (0.5, 40), (0.9, 432), (0.99, 902), (1.0, 1_021))
OUTPUT_QUANTILES = ((0.0, 4), (0.5, 211), (0.9, 513), (0.99, 785), (1.0, 977))
INPUT_MEAN, OUTPUT_MEAN = 136, 256
FIRST_RATE = 0.82
"""The rate of requests at the start, as a share of its mean; at the end it is 1.18."""


def real_trace(rng: Generator) -> list[tuple[float, int, int, int]]:
    """Each request's time, client (from 1), prompt and output tokens; in no order."""
    clients = [number for number, count in enumerate(COUNTS, 1) for _ in range(count)]
    count = len(clients)
    prompts = lengths(rng, INPUT_QUANTILES, INPUT_MEAN, count)
    outputs = lengths(rng, OUTPUT_QUANTILES, OUTPUT_MEAN, count)
    times = _rising(rng.random(count)) * SECONDS
    return [
        (float(when), client, prompt, output)
        for when, client, prompt, output in zip(times, clients, prompts, outputs, strict=True)
    ]


def _rising(
    shares: Vector,
) -> Vector:
    """The parts of the time after which these shares of the requests have come.

    Solves FIRST_RATE x + (1 - FIRST_RATE) x^2 = share.
    """
    bend = 1 - FIRST_RATE
    return np.asarray((np.sqrt(FIRST_RATE**2 + 4 * bend * shares) - FIRST_RATE) / (2 * bend))


def lengths(
    rng: Generator, quantiles: Sequence[tuple[float, int]], mean: float, count: int
) -> list[int]:
    """So many lengths with these quantiles and this mean, in random order.

    Between two quantiles the quantile function is a power of the share, all with the one exponent
    that gives the mean.
    """
    shares = (np.arange(count) + 0.5) / count
    low, high = 0.02, 50.0
    for _ in range(60):
        exponent = (low * high) ** 0.5
        drawn = _quantile(shares, quantiles, exponent)
        if drawn.mean() > mean:
            low = exponent
        else:
            high = exponent
    return [max(1, round(float(length))) for length in rng.permutation(drawn)]


def _quantile(
    shares: Vector,
    quantiles: Sequence[tuple[float, int]],
    exponent: float,
) -> Vector:
    """The lengths at these shares; a larger exponent makes each piece sag more."""
    known, values = (np.array(column, float) for column in zip(*quantiles, strict=True))
    piece = np.clip(np.searchsorted(known, shares, side="right") - 1, 0, len(known) - 2)
    part = (shares - known[piece]) / (known[piece + 1] - known[piece])
    lengths = values[piece] + (values[piece + 1] - values[piece]) * part**exponent
    return np.asarray(lengths, float)
