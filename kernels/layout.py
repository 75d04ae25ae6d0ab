"""Where each token of a batch sits in its sequence, and where that sequence's pages are.

The layers of a model belong to page groups of equally many layers that attend equally far back. A
page holds the keys and values of one group's layers for `page_size` positions of a sequence; which
group is up to who owns the page, so that one pool of pages serves all groups.

numpy only: a CPU engine need not load torch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class PagedLayer:
    """Where one layer of a model finds its pages, and how far back it attends.

    The token at position p attends to the `window` positions up to and including p; None: to all.
    """

    group: int
    index: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """The rows of a batch of N tokens; all int32 and contiguous.

    Row r's tokens are `row_starts[r]` up to `row_starts[r + 1]` of the batch, at positions
    `first_positions[r]`, ... of its sequence. `positions` and `rows` [N] say the same per token:
    its position, and the row it belongs to. `block_tables[g, r, p // S]` is the page that holds
    position p for the layers of group g; entries past a row's last position, or wholly before the
    window of its first token, are never read.
    """

    positions: Ints
    rows: Ints
    row_starts: Ints
    first_positions: Ints
    block_tables: Ints
