"""`kernels.api.Kernels` on a GPU: our own kernels in Triton, matrix products by cuBLAS.

Tensors are of one type, the model's; all kernels compute in fp32 and round once. With
`TRITON_INTERPRET=1` set before the first import everything runs on CPU tensors instead, slowly.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from kernels.api import Activation, KvPages, Linear, TensorLayout
from kernels.draws import Draws
from kernels.layout import PagedLayer
from kernels.triton.copy_pages import copy_pages
from kernels.triton.gated import gated
from kernels.triton.paged_attention import paged_attention
from kernels.triton.rms_norm import rms_norm
from kernels.triton.rotary import rotary
from kernels.triton.sampling import sample
from kernels.triton.store_kv import store_kv


class TritonKernels:
    """See `kernels.api.Kernels`; what each operation asks of its tensors, its module says."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """A matrix product in the weight's type."""
        return lambda x: functional.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `kernels.triton.rms_norm`."""
        return rms_norm(x, weight, eps)

    def rotary(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """See `kernels.triton.rotary`."""
        rotary(qkv, cos, sin, num_heads)

    def store_kv(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: TensorLayout
    ) -> None:
        """See `kernels.triton.store_kv`."""
        store_kv(qkv, pages, layer, layout)

    def paged_attention(
        self,
        qkv: torch.Tensor,
        pages: KvPages,
        layer: PagedLayer,
        layout: TensorLayout,
        scale: float,
    ) -> torch.Tensor:
        """See `kernels.triton.paged_attention`."""
        return paged_attention(qkv, pages, layer, layout, scale)

    def gated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `kernels.triton.gated`."""
        return gated(gate_up, activation)

    def copy_pages(self, pages: KvPages, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `kernels.triton.copy_pages`."""
        copy_pages(pages, sources, targets)

    def sample(self, logits: torch.Tensor, draws: Draws) -> torch.Tensor:
        """See `kernels.triton.sampling`."""
        return sample(logits, draws)
