"""A decoder operation by operation in torch, over paged keys and values.

The same text runs over the plain reference kernels, which is what the native step is tested
against, and over the Triton kernels on a GPU. A token's arithmetic depends on its own row only,
whatever else is in the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.model.config import ModelConfig
from engine.model.decoder import Indices, Logits
from engine.model.page_groups import page_groups
from engine.model.weights import Weights
from kernels.api import Kernels, KvPages, Linear, TensorLayout
from kernels.layout import BatchLayout, Ints


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class TorchDecoder:
    """`engine.model.decoder.Decoder` over `kernels.api.Kernels`."""

    def __init__(self, weights: Weights, kernels: Kernels) -> None:
        self.config = config = weights.config
        self.digest = weights.digest()
        self.page_groups = page_groups(config.layer_windows)
        self._kernels = kernels
        self._embedding = weights.tensor("embedding", (config.vocab_size, config.hidden_size))
        self._layers = [
            _load_layer(config, weights, kernels, f"layers.{layer}")
            for layer in range(config.num_layers)
        ]
        self._norm = weights.tensor("norm", (config.hidden_size,))
        self._head = kernels.linear(
            self._embedding
            if weights.tied
            else weights.tensor("head", (config.vocab_size, config.hidden_size))
        )
        self._frequencies = torch.from_numpy(config.ropes[0].frequencies())

    def page_bytes(self, page_size: int) -> int:
        """See `Decoder.page_bytes`."""
        config = self.config
        per_token = 2 * 4 * config.num_kv_heads * config.head_dim
        return per_token * page_size * self.page_groups.layers_per_group

    def open(self, num_pages: int, page_size: int, max_tokens: int) -> "TorchState":
        """See `Decoder.open`."""
        config = self.config
        pages = KvPages.allocate(
            self.page_groups.layers_per_group,
            num_pages,
            config.num_kv_heads,
            config.head_dim,
            page_size,
        )
        return TorchState(self, pages, max_tokens)

    def forward(
        self, token_ids: torch.Tensor, layout: TensorLayout, pages: KvPages
    ) -> torch.Tensor:
        """Hidden states [N, hidden] of the batch; its keys and values are written to `pages`."""
        ops, config = self._kernels, self.config
        angles = layout.positions.float()[:, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        scale = config.head_dim**-0.5
        x = functional.embedding(token_ids, self._embedding)
        for layer, paged in zip(self._layers, self.page_groups.layers, strict=True):
            qkv = layer.qkv(ops.rms_norm(x, layer.attention_norm, config.norm_eps))
            ops.rotary(qkv, cos, sin, config.num_heads + config.num_kv_heads)
            ops.store_kv(qkv, pages, paged, layout)
            x = x + layer.o(ops.paged_attention(qkv, pages, paged, layout, scale))
            gate_up = layer.gate_up(ops.rms_norm(x, layer.mlp_norm, config.norm_eps))
            x = x + layer.down(ops.gated(gate_up, "silu"))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [M, vocabulary] of hidden states [M, hidden]."""
        return self._head(self._kernels.rms_norm(hidden, self._norm, self.config.norm_eps))


class TorchState:
    """`engine.model.decoder.DecoderState` of a `TorchDecoder`."""

    def __init__(self, decoder: TorchDecoder, pages: KvPages, max_tokens: int) -> None:
        self.pages = pages
        self._decoder = decoder
        self._max_tokens = max_tokens
        self._hidden = torch.empty(0, decoder.config.hidden_size)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `DecoderState.copy_pages`."""
        self.pages.copy(sources, targets)

    def clear_page(self, page: int) -> None:
        """See `DecoderState.clear_page`."""
        self.pages.keys[:, page].zero_()
        self.pages.values[:, page].zero_()

    @torch.inference_mode()
    def forward(self, token_ids: Ints, layout: BatchLayout) -> None:
        """See `DecoderState.forward`."""
        if len(token_ids) > self._max_tokens:
            raise ValueError(f"{len(token_ids)} tokens are more than {self._max_tokens}")
        self._hidden = self._decoder.forward(
            torch.from_numpy(token_ids), TensorLayout.of(layout), self.pages
        )

    @torch.inference_mode()
    def logits(self, tokens: Indices) -> Logits:
        """See `DecoderState.logits`."""
        computed: Logits = self._decoder.logits(self._hidden[torch.from_numpy(tokens)]).numpy()
        return computed


def _load_layer(config: ModelConfig, weights: Weights, kernels: Kernels, name: str) -> _Layer:
    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.num_heads * config.head_dim
    shared = config.num_kv_heads * config.head_dim
    qkv = (
        weights.tensor(f"{name}.q", (query, hidden)),
        weights.tensor(f"{name}.k", (shared, hidden)),
        weights.tensor(f"{name}.v", (shared, hidden)),
    )
    gate_up = (
        weights.tensor(f"{name}.gate", (inner, hidden)),
        weights.tensor(f"{name}.up", (inner, hidden)),
    )
    return _Layer(
        attention_norm=weights.tensor(f"{name}.attention_norm", (hidden,)),
        qkv=kernels.linear(torch.cat(qkv)),
        o=kernels.linear(weights.tensor(f"{name}.o", (hidden, query))),
        mlp_norm=weights.tensor(f"{name}.mlp_norm", (hidden,)),
        gate_up=kernels.linear(torch.cat(gate_up)),
        down=kernels.linear(weights.tensor(f"{name}.down", (hidden, inner))),
    )
