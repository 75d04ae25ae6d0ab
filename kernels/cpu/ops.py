"""`kernels.api.Kernels` on the CPU: oneDNN for matrix products, numba for the rest, fp32."""

import torch
from torch.nn import functional

from kernels.api import Activation, KvPages, Linear, TensorLayout
from kernels.cpu import elementwise
from kernels.cpu.attention import FULL, attention_kernel
from kernels.cpu.jit import set_kernel_threads
from kernels.cpu.linear import packed_linear
from kernels.layout import PagedLayer


class CpuKernels:
    """Operations by `threads` threads; call them from one thread at a time.

    The first attention over pages of a new size compiles its kernel or loads it from the cache:
    seconds on a machine's first start, milliseconds later.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        torch.set_num_threads(threads)
        set_kernel_threads(threads)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Pre-packed matrix product."""
        multiply = packed_linear(weight)
        return multiply if bias is None else lambda x: multiply(x) + bias

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Kernels.rms_norm`."""
        rows = x.contiguous().view(-1, x.shape[-1])
        out = torch.empty_like(rows)
        elementwise.rms_norm(rows.numpy(), weight.numpy(), eps, out.numpy())
        return out.view(x.shape)

    def rotary(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """See `Kernels.rotary`."""
        elementwise.rotary(qkv.numpy(), cos.numpy(), sin.numpy(), num_heads)

    def store_kv(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: TensorLayout
    ) -> None:
        """See `Kernels.store_kv`."""
        elementwise.store_kv(
            qkv.numpy(),
            pages.keys.numpy()[layer.index],
            pages.values.numpy()[layer.index],
            layout.row_starts.numpy(),
            layout.first_positions.numpy(),
            layout.block_tables.numpy()[layer.group],
        )

    def paged_attention(
        self,
        qkv: torch.Tensor,
        pages: KvPages,
        layer: PagedLayer,
        layout: TensorLayout,
        scale: float,
    ) -> torch.Tensor:
        """See `Kernels.paged_attention`."""
        out = torch.empty(len(qkv), qkv.shape[1] - 2 * pages.num_kv_heads * pages.head_dim)
        windowed = layer.window is not None
        attend = attention_kernel(pages.page_size, pages.head_dim, windowed=windowed)
        attend(
            qkv.numpy(),
            pages.keys.numpy()[layer.index],
            pages.values.numpy()[layer.index],
            layout.row_starts.numpy(),
            layout.first_positions.numpy(),
            layout.block_tables.numpy()[layer.group],
            layer.window or FULL,
            self._threads,
            scale,
            out.numpy(),
        )
        return out

    def gated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `Kernels.gated`."""
        gate, up = gate_up.chunk(2, dim=-1)
        if activation == "silu":
            return functional.silu(gate).mul_(up)
        return functional.gelu(gate, approximate="tanh").mul_(up)
