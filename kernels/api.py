"""The device operations a decoder needs, as one port with a plain and a fast implementation.

The layers of a model belong to page groups of equally many layers that attend equally far back. A
page holds the keys and values of one group's layers for `page_size` positions of a sequence; which
group is up to who owns the page, so that one pool of pages serves all groups.

Shapes: N tokens in the batch, H query heads, G key/value heads (H a multiple of G), D head size,
S tokens per page. `qkv` is [N, (H + 2G) * D]: per token its query heads, key heads, value heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class KvPages:
    """The key/value cache; page p of a group's layer l is `keys[l, p]` and `values[l, p]`.

    The layers are those of one group, not of the model. `keys` is [layers, pages, G, D, S] and
    `values` is [layers, pages, G, S, D]: with the tokens of a page innermost for keys, scores of a
    whole page need no horizontal sums.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def allocate(
        cls, num_layers: int, num_pages: int, num_kv_heads: int, head_dim: int, page_size: int
    ) -> "KvPages":
        """Zeroed fp32 pages; the system commits the memory when a page is first written."""
        keys = (num_layers, num_pages, num_kv_heads, head_dim, page_size)
        values = (num_layers, num_pages, num_kv_heads, page_size, head_dim)
        # numpy's zeros are the system's untouched pages; torch would write every one of them.
        return cls(
            torch.from_numpy(np.zeros(keys, np.float32)),
            torch.from_numpy(np.zeros(values, np.float32)),
        )

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy page `sources[i]` to `targets[i]`, all layers; every source is read first.

        `targets` holds no page twice. A page that does not exist is an error of torch's.
        """
        read = torch.tensor(sources, dtype=torch.int64)
        write = torch.tensor(targets, dtype=torch.int64)
        for pages in (self.keys, self.values):
            pages.index_copy_(1, write, pages.index_select(1, read))

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.keys.shape[-1]

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads."""
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements per head."""
        return self.keys.shape[3]


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
    """Where each token of a batch sits in its sequence and where that sequence's pages are.

    Row r's tokens are `row_starts[r]` up to `row_starts[r + 1]` of the batch, at positions
    `first_positions[r]`, ... of its sequence. `block_tables[g, r, p // S]` is the page that holds
    position p for the layers of group g; entries past a row's last position, or wholly before the
    window of its first token, are never read. All int32 and contiguous, except `positions` (int64),
    the position of each token.
    """

    positions: torch.Tensor
    row_starts: torch.Tensor
    first_positions: torch.Tensor
    block_tables: torch.Tensor


class Linear(Protocol):
    """A fixed weight [out, in] in whatever form the device multiplies fastest."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T` for x [N, in]."""
        ...


class Kernels(Protocol):
    """Operations on one device. Implemented by `kernels.reference` and `kernels.cpu.ops`."""

    def linear(self, weight: torch.Tensor) -> Linear:
        """Take over a weight [out, in]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / sqrt(mean(x²) + eps) * weight` over the last dimension of x [N, C]."""
        ...

    def rotary(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """Rotate the first `num_heads` heads of qkv in place by angles [N, D / 2], half-split."""
        ...

    def store_kv(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: BatchLayout
    ) -> None:
        """Write each token's keys and values into the page slot of its position."""
        ...

    def paged_attention(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: BatchLayout
    ) -> torch.Tensor:
        """Causal attention of each token within the layer's window; returns [N, H * D].

        Scores are scaled by D^-½. Slots past a token's position, or before its window, may hold
        anything, NaN included.
        """
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`silu(gate) * up` for gate_up [N, 2C] = gate, up."""
        ...
