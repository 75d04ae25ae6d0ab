"""`kernels.api.Kernels` on the CPU: oneDNN for matrix products, numba for the rest, fp32."""

import torch
from torch.nn import functional

from kernels.api import BatchLayout, KvPages, Linear, PagedLayer
from kernels.cpu import elementwise
from kernels.cpu.attention import FULL, attention_kernel
from kernels.cpu.jit import set_kernel_threads
from kernels.cpu.linear import packed_linear


class CpuKernels:
    """Operations by `threads` threads; call them from one thread at a time.

    The first attention over pages of a new size compiles its kernel or loads it from the cache:
    seconds on a machine's first start, milliseconds later.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        torch.set_num_threads(threads)
        set_kernel_threads(threads)

    def linear(self, weight: torch.Tensor) -> Linear:
        """Pre-packed matrix product."""
        return packed_linear(weight)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Kernels.rms_norm`."""
        out = torch.empty_like(x)
        elementwise.rms_norm(x.numpy(), weight.numpy(), eps, out.numpy())
        return out

    def rotary(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """See `Kernels.rotary`."""
        elementwise.rotary(qkv.numpy(), cos.numpy(), sin.numpy(), num_heads)

    def store_kv(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: BatchLayout
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
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: BatchLayout
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
            out.numpy(),
        )
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Kernels.silu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)
