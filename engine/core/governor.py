"""Raises the reserve while preemption wastes work, and lets it fall again when it does not.

The more blocks admissions leave idle, the less often running requests run out of them and preempt
each other; the price is that requests wait longer. A fixed reserve is wrong for some load, so this
one follows the share of tokens that are computed a second time.
"""

from fractions import Fraction
from math import ceil
from typing import Final

from engine.core.config import CoreConfig

WINDOW_STEPS: Final = 256
CLEAN_STEPS: Final = 512
TOLERATED_SHARE: Final = Fraction(1, 100)
RISE_HALF_POINTS: Final = 2  # a half point is 1/200 of the pool
FALL_HALF_POINTS: Final = 1


class ThrashGovernor:
    """Holds the current reserve between the default and the highest, in whole blocks.

    Steps are counted in windows of 256, one after the other. A window that recomputed more than
    1 % of its computed tokens raises the reserve by 1 point of the pool; 512 steps in a row that
    recomputed nothing lower it by half a point.
    """

    def __init__(self, config: CoreConfig) -> None:
        self._num_blocks = config.num_blocks
        self._default = config.reserve_blocks
        self._highest = max(self._default, config.max_reserve_blocks)
        room = Fraction(200 * (self._highest - self._default), self._num_blocks)
        self._max_half_points = ceil(room)
        self._half_points = 0
        self._window_steps = 0
        self._window_computed = 0
        self._window_recomputed = 0
        self._clean_steps = 0
        self.reserve_blocks = self._default

    def observe(self, computed_tokens: int, recomputed_tokens: int) -> None:
        """Account for one step: the tokens it computed, and how many of them again."""
        self._window_steps += 1
        self._window_computed += computed_tokens
        self._window_recomputed += recomputed_tokens
        self._clean_steps = 0 if recomputed_tokens else self._clean_steps + 1
        if self._clean_steps == CLEAN_STEPS:
            self._clean_steps = 0
            self._move(-FALL_HALF_POINTS)
        if self._window_steps == WINDOW_STEPS:
            if self._window_recomputed > TOLERATED_SHARE * self._window_computed:
                self._move(RISE_HALF_POINTS)
            self._window_steps = self._window_computed = self._window_recomputed = 0

    def _move(self, half_points: int) -> None:
        """Change the surplus over the default within its bounds; blocks are rounded up."""
        self._half_points = min(max(self._half_points + half_points, 0), self._max_half_points)
        surplus = -(-self._half_points * self._num_blocks // 200)
        self.reserve_blocks = min(self._default + surplus, self._highest)
