"""The Llama decoder over paged keys and values: weights in, hidden states and logits out.

A token's arithmetic depends on its own row only, whatever else is in the batch.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.model.config import ModelConfig
from engine.model.page_groups import page_groups
from engine.model.weights import Weights
from kernels.api import BatchLayout, Kernels, KvPages, Linear


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class LlamaModel:
    """A loaded decoder. It keeps no state between calls: pages belong to the caller.

    `page_groups` says how many layers a page holds and which of them share a block table.
    """

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
        # In fp32 and in this order, as the reference implementation computes them: at position
        # 1,000 the rounding of an angle is what decides the fourth digit of its cosine.
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float()
        self._frequencies = 1.0 / (config.rope_theta ** (exponents / config.head_dim))

    def forward(self, token_ids: torch.Tensor, layout: BatchLayout, pages: KvPages) -> torch.Tensor:
        """Hidden states [N, hidden] of the batch; its keys and values are written to `pages`."""
        ops, config = self._kernels, self.config
        angles = layout.positions.float()[:, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        x = functional.embedding(token_ids, self._embedding)
        for layer, paged in zip(self._layers, self.page_groups.layers, strict=True):
            qkv = layer.qkv(ops.rms_norm(x, layer.attention_norm, config.norm_eps))
            ops.rotary(qkv, cos, sin, config.num_heads + config.num_kv_heads)
            ops.store_kv(qkv, pages, paged, layout)
            x = x + layer.o(ops.paged_attention(qkv, pages, paged, layout))
            gate_up = layer.gate_up(ops.rms_norm(x, layer.mlp_norm, config.norm_eps))
            x = x + layer.down(ops.silu_mul(gate_up))
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [M, vocabulary] of hidden states [M, hidden]."""
        return self._head(self._kernels.rms_norm(hidden, self._norm, self.config.norm_eps))


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
