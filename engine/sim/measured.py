"""A step-time model fitted to measured steps of the real engine.

The fit is least squares on relative errors with no negative coefficient: seconds per step, per row,
per token, per (query, key) pair and per position read. `python -m benchmarks.step_times` makes the
table.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from engine.sim.step_time import StepWork

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A batch of equal rows and how long it took."""

    rows: int
    tokens: int
    start: int
    seconds: float

    @property
    def work(self) -> StepWork:
        """What the batch asked of the machine."""
        context = self.start + self.tokens
        if self.tokens == 1:
            return StepWork(
                self.rows,
                decode_tokens=self.rows,
                decode_pairs=self.rows * context,
                kv_tokens=self.rows * context,
            )
        pairs = self.tokens * self.start + self.tokens * (self.tokens + 1) // 2
        return StepWork(
            self.rows,
            prefill_tokens=self.rows * self.tokens,
            prefill_pairs=self.rows * pairs,
            kv_tokens=self.rows * context,
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """Seconds that are a sum of parts, each a price times an amount of work."""

    per_step_s: float
    per_row_s: float
    per_token_s: float
    per_pair_s: float
    per_kv_token_s: float

    def seconds(self, work: StepWork) -> float:
        """How long the step takes."""
        return (
            self.per_step_s
            + self.per_row_s * work.num_rows
            + self.per_token_s * work.num_tokens
            + self.per_pair_s * work.num_pairs
            + self.per_kv_token_s * work.kv_tokens
        )


def fit(steps: Sequence[MeasuredStep]) -> Linear:
    """The linear model with the least sum of squared relative errors over these steps.

    Raises ValueError for too few steps, or if even an empty step would come out as free.
    """
    seconds = np.array([step.seconds for step in steps])
    amounts = np.array([_amounts(step.work) for step in steps], float)
    if len(steps) < amounts.shape[-1]:
        raise ValueError("fewer measured steps than coefficients")
    prices = _least_squares(amounts / seconds[:, None], np.ones(len(steps)))
    if prices[0] <= 0:
        raise ValueError("the measured steps give an empty step no time")
    return Linear(*(float(price) for price in prices))


def _amounts(work: StepWork) -> tuple[int, int, int, int, int]:
    return 1, work.num_rows, work.num_tokens, work.num_pairs, work.kv_tokens


def _least_squares(matrix: Vector, wanted: Vector) -> Vector:
    """Least squares with no negative coefficient.

    The most negative one is held at 0 and the rest solved again: enough for a handful of columns
    that nearly all belong in the model.
    """
    active = list(range(matrix.shape[1]))
    solution = np.zeros(matrix.shape[1])
    while active:
        found = np.linalg.lstsq(matrix[:, active], wanted, rcond=None)[0]
        if found.min() >= 0:
            solution[active] = found
            break
        del active[int(found.argmin())]
    return solution


def measured_steps() -> tuple[MeasuredStep, ...]:
    """The table in the repository: SmolLM2 135M on two AVX2 cores."""
    text = resources.files("engine.sim").joinpath("data/cpu_smollm2_135m.json").read_text()
    table: Mapping[str, Any] = json.loads(text)
    return tuple(MeasuredStep(**step) for step in table["steps"])


def measured_cpu() -> Linear:
    """The model fitted to that table."""
    return fit(measured_steps())
