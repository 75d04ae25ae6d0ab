"""Sorts a model's layers into page groups: equally many layers that attend equally far back.

Because every group has the same number of layers, a page is the same size whichever group holds
it, and one pool serves all: pages that sliding windows leave behind feed layers that forget
nothing. This is the idea of vLLM's hybrid cache manager; unlike there no group is ever padded.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from kernels.layout import PagedLayer


@dataclass(frozen=True, slots=True)
class PageGroups:
    """Of group g the window, None for full attention; of every layer its place."""

    windows: tuple[int | None, ...]
    layers_per_group: int
    layers: tuple[PagedLayer, ...]


def page_groups(layer_windows: Sequence[int | None]) -> PageGroups:
    """The fewest groups without padding: 15 sliding layers and 3 full ones make 6 groups of 3."""
    layers_per_group = gcd(*Counter(layer_windows).values())
    windows: list[int | None] = []
    layers: list[PagedLayer] = []
    newest: dict[int | None, tuple[int, int]] = {}  # window -> its newest group, layers in it
    for window in layer_windows:
        group, index = newest.get(window, (0, layers_per_group))
        if index == layers_per_group:
            group, index = len(windows), 0
            windows.append(window)
        layers.append(PagedLayer(group, index, window))
        newest[window] = group, index + 1
    return PageGroups(tuple(windows), layers_per_group, tuple(layers))
