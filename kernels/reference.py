"""Every kernel in plain torch: slow, obvious, and what the fast ones are tested against."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from kernels.api import Activation, KvPages, Linear, TensorLayout
from kernels.draws import Draws
from kernels.layout import PagedLayer


class ReferenceKernels:
    """`kernels.api.Kernels` without any cleverness; runs wherever torch runs."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Plain matrix product."""
        return lambda x: functional.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See `Kernels.rms_norm`."""
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
        return normed.to(x.dtype)

    def rotary(
        self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, num_heads: int
    ) -> None:
        """See `Kernels.rotary`."""
        half = cos.shape[-1]
        heads = qkv[:, : num_heads * 2 * half].view(len(qkv), num_heads, 2 * half)
        low, high = heads[..., :half].clone(), heads[..., half:].clone()
        heads[..., :half] = low * cos[:, None] - high * sin[:, None]
        heads[..., half:] = high * cos[:, None] + low * sin[:, None]

    def store_kv(
        self, qkv: torch.Tensor, pages: KvPages, layer: PagedLayer, layout: TensorLayout
    ) -> None:
        """See `Kernels.store_kv`."""
        width = pages.num_kv_heads * pages.head_dim
        for token, (page, slot) in enumerate(_slots(layout, layer.group, pages.page_size)):
            keys, values = qkv[token, -2 * width :].view(2, pages.num_kv_heads, pages.head_dim)
            pages.keys[layer.index, page, :, :, slot] = keys
            pages.values[layer.index, page, :, slot, :] = values

    def paged_attention(
        self,
        qkv: torch.Tensor,
        pages: KvPages,
        layer: PagedLayer,
        layout: TensorLayout,
        scale: float,
    ) -> torch.Tensor:
        """See `Kernels.paged_attention`: gathers a row's pages, then one softmax per token."""
        kv_heads, dim = pages.num_kv_heads, pages.head_dim
        heads = qkv.shape[1] // dim - 2 * kv_heads
        queries = qkv[:, : heads * dim].view(len(qkv), kv_heads, heads // kv_heads, dim)
        out = torch.empty_like(queries)
        for row, table in enumerate(layout.block_tables[layer.group].long()):
            for token in range(int(layout.row_starts[row]), int(layout.row_starts[row + 1])):
                end = int(layout.positions[token]) + 1
                start = 0 if layer.window is None else max(0, end - layer.window)
                first_page = start // pages.page_size
                used = table[first_page : -(-end // pages.page_size)]
                keys = pages.keys[layer.index, used].permute(1, 0, 3, 2)
                values = pages.values[layer.index, used].transpose(0, 1)
                first = first_page * pages.page_size
                keys = keys.reshape(kv_heads, -1, dim)[:, start - first : end - first]
                values = values.reshape(kv_heads, -1, dim)[:, start - first : end - first]
                scores = queries[token] @ keys.transpose(1, 2) * scale
                out[token] = scores.softmax(-1) @ values
        return out.view(len(qkv), heads * dim)

    def gated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See `Kernels.gated`."""
        gate, up = gate_up.chunk(2, dim=-1)
        if activation == "silu":
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up

    def copy_pages(self, pages: KvPages, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `KvPages.copy`."""
        pages.copy(sources, targets)

    def sample(self, logits: torch.Tensor, draws: Draws) -> torch.Tensor:
        """See `Kernels.sample`: sorts each row, in fp64."""
        tokens = [_draw(row, draws, index) for index, row in enumerate(logits.double())]
        return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def _slots(layout: TensorLayout, group: int, page_size: int) -> list[tuple[int, int]]:
    """(page, slot) of every token."""
    slots: list[tuple[int, int]] = []
    for row, table in enumerate(layout.block_tables[group].tolist()):
        first, last = layout.row_starts[row : row + 2].tolist()
        positions = layout.positions[first:last].tolist()
        slots += [(table[p // page_size], p % page_size) for p in positions]
    return slots


def _draw(logits: torch.Tensor, draws: Draws, row: int) -> int:
    """One token of the logits [vocabulary] of a row."""
    if bool(logits.isnan().all()):
        return -1
    logits = logits.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    top, temperature, top_k = logits.max(), float(draws.temperatures[row]), int(draws.top_ks[row])
    if temperature <= 0 or top_k == 1:
        return int((logits == top).nonzero()[0])
    relative = torch.where(logits == top, 0, (logits - top) / temperature).exp()
    weights = torch.where(relative >= float(draws.min_ps[row]), relative, 0)
    ranked = logits.argsort(descending=True, stable=True)[: top_k if top_k > 0 else None]
    top_p = float(draws.top_ps[row])
    if top_p < 1:
        reached = weights[ranked].cumsum(0)
        ranked = ranked[: int((reached < top_p * reached[-1]).sum()) + 1]
    kept = ranked.sort().values
    passed = weights[kept].cumsum(0)
    # A point just below 1 may round up to the whole, which nothing exceeds.
    whole = passed[-1]
    goal = torch.minimum(float(draws.points[row]) * whole, whole.nextafter(torch.zeros_like(whole)))
    return int(kept[int((passed <= goal).sum())])
