"""Rotary embedding: how fast each pair of a head's elements turns, and how long texts slow it.

The element pairs (i, i + D/2) of a head at position p turn by `p * frequencies()[i]`; cosine and
sine are multiplied by `scale`. Everything is fp32 and in the order in which the reference
implementation computes it: at position 1,000 the rounding of an angle is what decides the fourth
digit of its cosine. Source: RoFormer, arXiv:2104.09864.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]


class Scaling(Protocol):
    """A change of the frequencies after training."""

    @property
    def scale(self) -> float:
        """The factor of cosine and sine."""
        ...

    def apply(self, periods: Array) -> Array:
        """The frequencies [D/2] of pairs that as trained turn a radian in so many positions."""
        ...


@dataclass(frozen=True, slots=True)
class Unscaled:
    """As trained."""

    scale: float = 1.0

    def apply(self, periods: Array) -> Array:
        """See `Scaling.apply`."""
        return np.float32(1) / periods


@dataclass(frozen=True, slots=True)
class Linear:
    """All positions squeezed by one factor. Source: position interpolation, arXiv:2306.15595."""

    factor: float
    scale: float = 1.0

    def apply(self, periods: Array) -> Array:
        """See `Scaling.apply`."""
        return np.float32(1) / periods / np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class Divisors:
    """Frequency i divided by `values[i]`: what GGUF files keep of a scaling, as a tensor."""

    values: tuple[float, ...]
    scale: float = 1.0

    def apply(self, periods: Array) -> Array:
        """See `Scaling.apply`."""
        divisors: Array = np.array(self.values, np.float32)
        return np.float32(1) / periods / divisors


@dataclass(frozen=True, slots=True)
class Llama3:
    """Slow pairs squeezed, fast ones left, those between blended by wavelength. Source: Llama 3.1.

    A pair is slow when it turns less than `low_frequency` times within `original_context` tokens,
    and fast when it turns more than `high_frequency` times.
    """

    factor: float
    low_frequency: float
    high_frequency: float
    original_context: int
    scale: float = 1.0

    def apply(self, periods: Array) -> Array:
        """See `Scaling.apply`."""
        frequencies = np.float32(1) / periods
        wavelengths = np.float32(1) / frequencies * np.float32(2 * math.pi)
        slow = wavelengths > self.original_context / self.low_frequency
        fast = wavelengths < self.original_context / self.high_frequency
        turns = np.float32(1) / wavelengths * np.float32(self.original_context)
        share = turns - np.float32(self.low_frequency)
        share /= np.float32(self.high_frequency - self.low_frequency)
        blended = (1 - share) * frequencies / np.float32(self.factor) + share * frequencies
        squeezed = frequencies / np.float32(self.factor)
        scaled: Array = np.where(slow, squeezed, np.where(fast, frequencies, blended))
        return scaled


@dataclass(frozen=True, slots=True)
class Yarn:
    """Pairs up to `first` as trained, from `last` on squeezed, mixed between; and sharper scores.

    Source: YaRN, arXiv:2309.00071, as the reference implementation of transformers has it.
    """

    factor: float
    first: float
    last: float
    scale: float

    def apply(self, periods: Array) -> Array:
        """See `Scaling.apply`."""
        pairs = np.arange(len(periods), dtype=np.float32)
        steps = (pairs - np.float32(self.first)) / np.float32(self.last - self.first)
        kept = 1 - np.clip(steps, np.float32(0), np.float32(1))
        frequencies = np.float32(1) / periods
        squeezed = np.float32(1) / (np.float32(self.factor) * periods)
        mixed: Array = squeezed * (1 - kept) + frequencies * kept
        return mixed


def yarn_range(
    head_dim: int,
    theta: float,
    original_context: int,
    turns: tuple[float, float] = (32.0, 1.0),
    *,
    rounded: bool = True,
) -> tuple[float, float]:
    """The first and the last pair of YaRN's ramp: those that turn so often in the old context.

    `theta` must not be 1.
    """
    first, last = (
        head_dim * math.log(original_context / (count * 2 * math.pi)) / (2 * math.log(theta))
        for count in turns
    )
    if rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    return first, last + 0.001 if first == last else last


def yarn_scale(factor: float, strength: float = 1.0) -> float:
    """How much YaRN sharpens scores, per operand, for a context `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * strength * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of one kind of layer: heads of `head_dim` elements turned with base `theta`."""

    head_dim: int
    theta: float
    scaling: Scaling = Unscaled()

    def frequencies(self) -> Array:
        """Radians per position of each pair, fp32 [head_dim / 2]."""
        exponents = np.arange(0, self.head_dim, 2).astype(np.float32) / np.float32(self.head_dim)
        return self.scaling.apply(np.float32(self.theta) ** exponents)

    @property
    def scale(self) -> float:
        """The factor of cosine and sine."""
        return self.scaling.scale
