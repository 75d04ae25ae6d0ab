"""The device operations a decoder needs, as one port over torch tensors: plain, and Triton.

Shapes: N tokens in the batch, H query heads, G key/value heads (H a multiple of G), D head size,
S tokens per page. `qkv` is [N, (H + 2G) * D]: per token its query heads, key heads, value heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from kernels.draws import Draws
from kernels.layout import BatchLayout, PagedLayer

Activation = Literal["silu", "gelu_tanh"]


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
        cls,
        num_layers: int,
        num_pages: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> "KvPages":
        """Zeroed pages."""
        keys = (num_layers, num_pages, num_kv_heads, head_dim, page_size)
        values = (num_layers, num_pages, num_kv_heads, page_size, head_dim)
        return cls(
            torch.zeros(keys, dtype=dtype, device=device),
            torch.zeros(values, dtype=dtype, device=device),
        )

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy page `sources[i]` to `targets[i]`, all layers; every source is read first.

        `targets` holds no page twice. A page that does not exist is an error of torch's.
        """
        read = torch.tensor(sources, dtype=torch.int64, device=self.keys.device)
        write = torch.tensor(targets, dtype=torch.int64, device=self.keys.device)
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
class TensorLayout:
    """`kernels.layout.BatchLayout` on a device: `positions` int64, the others int32.

    `longest_row` is the most tokens of one row in the batch, `longest_context` the most positions
    that a token of it has before it, itself included: what launches are sized by, without asking
    the device.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    row_starts: torch.Tensor
    first_positions: torch.Tensor
    block_tables: torch.Tensor
    longest_row: int
    longest_context: int

    @classmethod
    def of(cls, layout: BatchLayout, device: str = "cpu") -> "TensorLayout":
        """Move a layout of at least one row to a device."""
        counts = np.diff(layout.row_starts)
        return cls(
            positions=torch.from_numpy(layout.positions).to(device, torch.int64),
            rows=torch.from_numpy(layout.rows).to(device),
            row_starts=torch.from_numpy(layout.row_starts).to(device),
            first_positions=torch.from_numpy(layout.first_positions).to(device),
            block_tables=torch.from_numpy(layout.block_tables).to(device),
            longest_row=int(counts.max()),
            longest_context=int((layout.first_positions + counts).max()),
        )


class Linear(Protocol):
    """A fixed weight [out, in], and perhaps a bias, in whatever form the device likes best."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ weight.T + bias` for x [N, in]."""
        ...


class Kernels(Protocol):
    """Operations on one device. Implemented by `kernels.reference` and `kernels.triton.ops`."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Take over a weight [out, in] and a bias [out]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / sqrt(mean(x²) + eps) * weight` over the last dimension of x, in x's type.

        `weight` may be of another.
        """
        ...

    def rotary(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """Rotate the first `num_heads` heads of qkv in place by angles [N, D / 2], half-split."""
        ...

    def store_kv(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: TensorLayout
    ) -> None:
        """Write each token's keys and values into the page slot of its position."""
        ...

    def paged_attention(
        self,
        qkv: torch.Tensor,
        pages: KvPages,
        layer: PagedLayer,
        layout: TensorLayout,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention of each token within the layer's window; returns [N, H * D].

        Scores are multiplied by `scale`. Slots past a row's last position, or before a token's
        window, may hold anything, NaN included.
        """
        ...

    def copy_pages(self, pages: KvPages, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy page `sources[i]` to `targets[i]`, all layers; every source is read first.

        `targets` holds no page twice.
        """
        ...

    def sample(self, logits: torch.Tensor, draws: Draws) -> torch.Tensor:
        """The drawn token [R] int64 of each row of logits [R, vocabulary].

        -1 where none of a row's logits is a number.
        """
        ...

    def gated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """`activation(gate) * up` for gate_up [N, 2C] = gate, up."""
        ...
