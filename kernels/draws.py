"""How tokens are to be drawn from rows of logits. numpy only: not all who draw load torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Draws:
    """One draw per row; all arrays are [R].

    Of a row's tokens those at least `min_ps` times as likely as the likeliest stay, after division
    by `temperatures`; of those the `top_ks` largest logits (0: all), the lower id first on ties; of
    those the shortest run, largest first, whose share of the probability reaches `top_ps`. `points`
    in [0, 1) picks among what is left in order of id. Temperature 0, like `top_ks` of 1, takes the
    largest logit. NaN counts as minus infinity.
    """

    temperatures: Doubles
    top_ks: Ints
    top_ps: Doubles
    min_ps: Doubles
    points: Doubles

    @classmethod
    def of(cls, rows: Sequence[tuple[float, int, float, float, float]]) -> "Draws":
        """From (temperature, top_k, top_p, min_p, point) per row."""
        temperatures, top_ks, top_ps, min_ps, points = zip(*rows, strict=True)
        return cls(
            np.array(temperatures, np.float64),
            np.array(top_ks, np.int32),
            np.array(top_ps, np.float64),
            np.array(min_ps, np.float64),
            np.array(points, np.float64),
        )
