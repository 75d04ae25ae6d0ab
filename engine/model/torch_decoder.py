"""A decoder operation by operation in torch, over paged keys and values.

The same text runs over the plain reference kernels, which is what the native step is tested
against, and over the Triton kernels on a GPU (`engine.model.gpu_decoder`). A token's arithmetic
depends on its own row only, whatever else is in the batch, as far as matrix products do.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from engine.model.decoder import Indices, Logits
from engine.model.page_groups import page_groups
from engine.model.weights import Weights
from kernels.api import Kernels, KvPages, Linear, TensorLayout
from kernels.draws import Draws
from kernels.layout import BatchLayout, Ints
from kernels.matrix import Matrix, QuantizedMatrix


@dataclass(frozen=True, slots=True)
class _Layer:
    """A norm is None where the configuration has none in its place."""

    rope: int
    attention_norm: torch.Tensor
    qkv: Linear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Linear
    post_attention_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    post_mlp_norm: torch.Tensor | None


class TorchDecoder:
    """`engine.model.decoder.Decoder` over `kernels.api.Kernels`.

    Weights, activations, keys and values are of one `dtype`; norms' factors and angles stay fp32.
    """

    def __init__(
        self,
        weights: Weights,
        kernels: Kernels,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        self.config = config = weights.config
        self.digest = weights.digest()
        if dtype != torch.float32:
            self.digest = hashlib.sha256(self.digest + str(dtype).encode()).digest()
        self.dtype, self.device = dtype, device
        self.page_groups = page_groups(config.layer_windows)
        self._kernels = kernels
        load = _Loader(weights, kernels, dtype, device)
        table = (config.vocab_size, config.hidden_size)
        self._embedding = load.weight("embedding", table)
        self._layers = [load.layer(layer) for layer in range(config.num_layers)]
        self._norm = load.vector("norm", config.hidden_size)
        self._head = kernels.linear(self._embedding if weights.tied else load.weight("head", table))
        self._ropes = [
            (torch.from_numpy(rope.frequencies()).to(device), rope.scale) for rope in config.ropes
        ]

    def page_bytes(self, page_size: int) -> int:
        """See `Decoder.page_bytes`."""
        config = self.config
        per_token = 2 * self.dtype.itemsize * config.num_kv_heads * config.head_dim
        return per_token * page_size * self.page_groups.layers_per_group

    def open(self, num_pages: int, page_size: int, max_tokens: int) -> "TorchState":
        """See `Decoder.open`."""
        return TorchState(self, self.allocate(num_pages, page_size), max_tokens)

    def allocate(self, num_pages: int, page_size: int) -> KvPages:
        """Zeroed pages for one engine."""
        return KvPages.allocate(
            self.page_groups.layers_per_group,
            num_pages,
            self.config.num_kv_heads,
            self.config.head_dim,
            page_size,
            dtype=self.dtype,
            device=self.device,
        )

    def copy_pages(self, pages: KvPages, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `Kernels.copy_pages`."""
        self._kernels.copy_pages(pages, sources, targets)

    def sample(self, logits: torch.Tensor, draws: Draws) -> torch.Tensor:
        """See `Kernels.sample`."""
        return self._kernels.sample(logits, draws)

    def forward(
        self, token_ids: torch.Tensor, layout: TensorLayout, pages: KvPages
    ) -> torch.Tensor:
        """Hidden states [N, hidden] of the batch; its keys and values are written to `pages`."""
        ops, config = self._kernels, self.config
        rotations = [self._rotation(rope, layout) for rope in range(len(config.ropes))]
        x = functional.embedding(token_ids, self._embedding)
        if config.embedding_scale != 1:
            x = x * config.embedding_scale
        for layer, paged in zip(self._layers, self.page_groups.layers, strict=True):
            qkv = layer.qkv(ops.rms_norm(x, layer.attention_norm, config.norm_eps))
            self._normalise_heads(qkv, layer)
            ops.rotary(qkv, *rotations[layer.rope], config.num_heads + config.num_kv_heads)
            ops.store_kv(qkv, pages, paged, layout)
            attended = ops.paged_attention(qkv, pages, paged, layout, config.attention_scale)
            x = x + self._normed(layer.o(attended), layer.post_attention_norm)
            gate_up = layer.gate_up(ops.rms_norm(x, layer.mlp_norm, config.norm_eps))
            thought = layer.down(ops.gated(gate_up, config.activation))
            x = x + self._normed(thought, layer.post_mlp_norm)
        return x

    def _rotation(self, rope: int, layout: TensorLayout) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [N, D / 2] of the batch's positions."""
        frequencies, scale = self._ropes[rope]
        angles = layout.positions.float()[:, None] * frequencies
        return angles.cos() * scale, angles.sin() * scale

    def _normalise_heads(self, qkv: torch.Tensor, layer: _Layer) -> None:
        """Normalise query and key heads in place, each over its own elements."""
        queries, shared = self.config.num_heads, self.config.num_kv_heads
        heads = qkv.view(len(qkv), -1, self.config.head_dim)
        for part, norm in (
            (heads[:, :queries], layer.q_norm),
            (heads[:, queries : queries + shared], layer.k_norm),
        ):
            if norm is not None:
                part.copy_(self._normed(part, norm))

    def _normed(self, x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        if norm is None:
            return x
        return self._kernels.rms_norm(x, norm, self.config.norm_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits [M, vocabulary] of hidden states [M, hidden]."""
        return self._head(self._kernels.rms_norm(hidden, self._norm, self.config.norm_eps))


class TorchState:
    """`engine.model.decoder.DecoderState` of a `TorchDecoder`.

    What does not exist is refused before it reaches the device, where it could end the process.
    """

    def __init__(self, decoder: TorchDecoder, pages: KvPages, max_tokens: int) -> None:
        self.pages = pages
        self._decoder = decoder
        self._max_tokens = max_tokens
        self._hidden = torch.empty(0, decoder.config.hidden_size)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `DecoderState.copy_pages`."""
        self._decoder.copy_pages(self.pages, sources, targets)

    def clear_page(self, page: int) -> None:
        """See `DecoderState.clear_page`."""
        self.pages.keys[:, page].zero_()
        self.pages.values[:, page].zero_()

    @torch.inference_mode()
    def forward(self, token_ids: Ints, layout: BatchLayout) -> None:
        """See `DecoderState.forward`."""
        if len(token_ids) > self._max_tokens:
            raise ValueError(f"{len(token_ids)} tokens are more than {self._max_tokens}")
        _require("token", token_ids, self._decoder.config.vocab_size)
        _require_pages(layout, self._decoder.page_groups.windows, self.pages)
        device = self._decoder.device
        self._hidden = self._decoder.forward(
            torch.from_numpy(token_ids).to(device), TensorLayout.of(layout, device), self.pages
        )

    @torch.inference_mode()
    def logits(self, tokens: Indices) -> Logits:
        """See `DecoderState.logits`; raises ValueError for a token that was not in the batch."""
        computed: Logits = self._logits(tokens).float().cpu().numpy()
        return computed

    def _logits(self, tokens: Indices) -> torch.Tensor:
        """The same where they are computed, in the model's type."""
        _require("token of the batch", tokens, len(self._hidden))
        picked = torch.from_numpy(tokens).to(self._decoder.device)
        return self._decoder.logits(self._hidden[picked])


def _require(what: str, numbers: Ints | Indices, count: int) -> None:
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
        raise ValueError(f"a {what} is not among {count}: {numbers.min()} to {numbers.max()}")


def _require_pages(layout: BatchLayout, windows: Sequence[int | None], pages: KvPages) -> None:
    """Refuse a batch with a position, written or looked back to, whose page does not exist."""
    tables, size = layout.block_tables, pages.page_size
    counts = np.diff(layout.row_starts)
    past = np.where(counts, (layout.first_positions + counts - 1) // size + 1, 0)
    _require("slot of a block table", past - (past > 0), tables.shape[2])
    slots = np.arange(tables.shape[2])
    for table, window in zip(tables, windows, strict=True):
        oldest = layout.first_positions - (window or layout.first_positions + 1) + 1
        first = np.maximum(oldest, 0) // size
        read = (slots >= first[:, None]) & (slots < past[:, None])
        _require("page", table[read], pages.keys.shape[1])


class _Loader:
    """Takes weights over, one at a time, so that a model never lies in memory twice."""

    def __init__(self, weights: Weights, kernels: Kernels, dtype: torch.dtype, device: str) -> None:
        self._weights = weights
        self._kernels = kernels
        self._dtype = dtype
        self._device = device

    def weight(self, name: str, shape: tuple[int, int]) -> torch.Tensor:
        """A matrix in the model's type."""
        return _tensor(self._weights.matrix(name, shape)).to(self._device, self._dtype)

    def vector(self, name: str, length: int) -> torch.Tensor:
        """A norm's factors, or a bias, in fp32."""
        return torch.from_numpy(self._weights.vector(name, length)).to(self._device)

    def layer(self, layer: int) -> _Layer:
        """Everything of one layer."""
        config, name = self._weights.config, f"layers.{layer}"
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        query, shared = config.num_heads * dim, config.num_kv_heads * dim
        qkv = {f"{name}.q": query, f"{name}.k": shared, f"{name}.v": shared}
        gate_up = {f"{name}.gate": inner, f"{name}.up": inner}

        def optional(part: str, length: int, *, present: bool) -> torch.Tensor | None:
            return self.vector(f"{name}.{part}", length) if present else None

        return _Layer(
            rope=config.layer_ropes[layer],
            attention_norm=self.vector(f"{name}.attention_norm", hidden),
            qkv=self._linear(qkv, hidden, bias=config.qkv_bias),
            q_norm=optional("q_norm", dim, present=config.qk_norm),
            k_norm=optional("k_norm", dim, present=config.qk_norm),
            o=self._linear({f"{name}.o": hidden}, query, bias=config.o_bias),
            post_attention_norm=optional("post_attention_norm", hidden, present=config.post_norms),
            mlp_norm=self.vector(f"{name}.mlp_norm", hidden),
            gate_up=self._linear(gate_up, hidden),
            down=self._linear({f"{name}.down": hidden}, inner),
            post_mlp_norm=optional("post_mlp_norm", hidden, present=config.post_norms),
        )

    def _linear(self, parts: dict[str, int], columns: int, *, bias: bool = False) -> Linear:
        """One matrix of several, by name and rows, one below the other."""
        weight = torch.cat([self.weight(name, (rows, columns)) for name, rows in parts.items()])
        if not bias:
            return self._kernels.linear(weight)
        biases = [self.vector(f"{name}_bias", rows) for name, rows in parts.items()]
        return self._kernels.linear(weight, torch.cat(biases).to(self._dtype))


def _tensor(matrix: Matrix) -> torch.Tensor:
    """A matrix as its file has it, or its values where it is quantised."""
    if isinstance(matrix, QuantizedMatrix):
        return torch.from_numpy(matrix.float32())
    values = torch.from_numpy(matrix.values)
    return values.view(torch.bfloat16) if matrix.kind == "bf16" else values
