"""The decoder on a CPU: operations listed once, then one native call a step, without torch.

The list is what `engine.model.torch_decoder` says operation by operation; the two are tested
against each other. A token's arithmetic depends on its own row only, whatever else is in the batch.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from engine.model.decoder import Indices, Logits
from engine.model.native_weights import NativeLayer, load_native
from engine.model.page_groups import page_groups
from engine.model.weights import Weights
from kernels.cpu.library import chosen_variant, native
from kernels.cpu.packed import PackedMatrix
from kernels.cpu.step import (
    Angles,
    Attention,
    Buffer,
    Embed,
    Gate,
    Heads,
    Linear,
    Norm,
    Op,
    Pages,
    Program,
    Quantize,
)
from kernels.cpu.team import Team
from kernels.layout import BatchLayout, Ints
from kernels.matrix import Array

Quantization = Literal["none", "activations-int8"]
"""How activations are multiplied: as they are, or rounded to 8 bits by token and 32 columns."""

_FP32_BYTES: Final = 4


def require_kernels(quantization: Quantization) -> None:
    """Raise KernelsUnavailableError where none run, ValueError where those lack 8-bit products."""
    native()
    if quantization == "activations-int8" and chosen_variant() != "avx2":
        raise ValueError(
            f"quantization {quantization!r} needs the kernels for AVX2; plain ones run here"
        )


class NativeDecoder:
    """`engine.model.decoder.Decoder` by the native kernels and a team of `threads`.

    Raises ModelFileError, KernelsUnavailableError where no kernels are compiled, and ValueError for
    8-bit activations where AVX2 is missing, or not wanted.
    """

    def __init__(self, weights: Weights, threads: int, quantization: Quantization = "none") -> None:
        require_kernels(quantization)
        int8 = quantization == "activations-int8"
        self.config = weights.config
        self.page_groups = page_groups(self.config.layer_windows)
        self.digest = weights.digest()
        if int8:
            self.digest = hashlib.sha256(self.digest + quantization.encode()).digest()
        self.team = Team(threads)
        self.weights = load_native(weights, threads, int8_activations=int8)

    def page_bytes(self, page_size: int) -> int:
        """See `Decoder.page_bytes`."""
        config = self.config
        per_token = 2 * _FP32_BYTES * config.num_kv_heads * config.head_dim
        return per_token * page_size * self.page_groups.layers_per_group

    def open(self, num_pages: int, page_size: int, max_tokens: int) -> "NativeState":
        """See `Decoder.open`; the system commits the memory of a page when it is first written."""
        return NativeState(self, num_pages, page_size, max_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class NativePages:
    """`keys` [layers, pages, G, D, S] and `values` [layers, pages, G, S, D] of one group's layers.

    The system commits the memory of a page when it is first written.
    """

    keys: Array
    values: Array

    @classmethod
    def allocate(cls, decoder: NativeDecoder, num_pages: int, page_size: int) -> "NativePages":
        """All zeros."""
        config = decoder.config
        shape = (decoder.page_groups.layers_per_group, num_pages, config.num_kv_heads)
        return cls(
            np.zeros((*shape, config.head_dim, page_size), np.float32),
            np.zeros((*shape, page_size, config.head_dim), np.float32),
        )

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `DecoderState.copy_pages`; raises ValueError for a page that does not exist."""
        self._require((*sources, *targets))
        for pages in (self.keys, self.values):
            pages[:, targets] = pages[:, sources]

    def clear(self, page: int) -> None:
        """Make it all zeros; raises ValueError for a page that does not exist."""
        self._require((page,))
        self.keys[:, page] = 0
        self.values[:, page] = 0

    def _require(self, pages: Sequence[int]) -> None:
        if pages and not (min(pages) >= 0 and max(pages) < self.keys.shape[1]):
            raise ValueError(f"of pages {sorted(pages)} one is not among {self.keys.shape[1]}")


class NativeState:
    """`engine.model.decoder.DecoderState` of a `NativeDecoder`."""

    def __init__(
        self, decoder: NativeDecoder, num_pages: int, page_size: int, max_tokens: int
    ) -> None:
        config, head = decoder.config, decoder.weights.head
        self.pages = NativePages.allocate(decoder, num_pages, page_size)
        forward = _Forward(decoder, self.pages, max_tokens)
        num_groups = len(decoder.page_groups.windows)
        self._step = Program(decoder.team, list(forward.ops()), max_tokens, num_groups)
        self._hidden = forward.hidden.values
        self._num_tokens = 0
        self._picked = Buffer(max_tokens, config.hidden_size, quantized=_int8(head))
        self._logits = Buffer(0, config.vocab_size)
        ops = [
            Norm(self._picked, decoder.weights.norm, config.norm_eps, self._picked),
            *_product(self._picked, (head,), self._logits),
        ]
        self._head = Program(decoder.team, ops, max_tokens)

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See `DecoderState.copy_pages`."""
        self.pages.copy(sources, targets)

    def clear_page(self, page: int) -> None:
        """See `DecoderState.clear_page`."""
        self.pages.clear(page)

    def forward(self, token_ids: Ints, layout: BatchLayout) -> None:
        """See `DecoderState.forward`."""
        self._step.run(token_ids, layout)
        self._num_tokens = len(token_ids)

    def logits(self, tokens: Indices) -> Logits:
        """See `DecoderState.logits`; raises ValueError for a token that was not in the batch."""
        count = len(tokens)
        if count and not (tokens.min() >= 0 and tokens.max() < self._num_tokens):
            raise ValueError(f"the latest batch had {self._num_tokens} tokens")
        self._picked.values[:count] = self._hidden[tokens]
        out = np.empty((count, self._logits.width), np.float32)
        self._logits.take(out)
        self._head.run_rowless(count)
        return out


class _Forward:
    """Lists the operations from tokens to hidden states, over buffers that all layers share."""

    def __init__(self, decoder: NativeDecoder, pages: NativePages, max_tokens: int) -> None:
        config, layers = decoder.config, decoder.weights.layers
        self._decoder = decoder
        self._pages = [
            Pages(pages.keys[place.index], pages.values[place.index], place)
            for place in decoder.page_groups.layers
        ]
        query = config.num_heads * config.head_dim

        def buffer(width: int, *readers: PackedMatrix) -> Buffer:
            return Buffer(max_tokens, width, quantized=_int8(*readers))

        self.hidden = buffer(config.hidden_size)
        self._normed = buffer(
            config.hidden_size,
            *(m for layer in layers for m in (layer.q, layer.k, layer.v, layer.gate, layer.up)),
        )
        self._qkv = buffer(query + 2 * config.num_kv_heads * config.head_dim)
        self._attended = buffer(query, *(layer.o for layer in layers))
        self._gate_up = buffer(2 * config.intermediate_size)
        self._gated = buffer(config.intermediate_size, *(layer.down for layer in layers))
        self._branch = buffer(config.hidden_size if config.post_norms else 0)
        half = config.head_dim // 2
        self._angles = [
            Angles(rope.frequencies(), rope.scale, buffer(half), buffer(half))
            for rope in config.ropes
        ]

    def ops(self) -> Iterator[Op]:
        """All of them, in order."""
        decoder = self._decoder
        yield Embed(decoder.weights.embedding, self.hidden, decoder.config.embedding_scale)
        yield from self._angles
        for number, layer in enumerate(decoder.weights.layers):
            yield from self._attention(layer, number)
            yield from self._mlp(layer)

    def _attention(self, layer: NativeLayer, number: int) -> Iterator[Op]:
        config, pages = self._decoder.config, self._pages[number]
        angles = self._angles[config.layer_ropes[number]]
        yield Norm(self.hidden, layer.attention_norm, config.norm_eps, self._normed)
        yield from _product(self._normed, (layer.q, layer.k, layer.v), self._qkv)
        yield Heads(
            self._qkv, config.num_heads, layer.q_norm, layer.k_norm, config.norm_eps, angles, pages
        )
        yield Attention(self._qkv, config.num_heads, config.attention_scale, pages, self._attended)
        yield from self._added(self._attended, layer.o, layer.post_attention_norm)

    def _mlp(self, layer: NativeLayer) -> Iterator[Op]:
        config = self._decoder.config
        yield Norm(self.hidden, layer.mlp_norm, config.norm_eps, self._normed)
        yield from _product(self._normed, (layer.gate, layer.up), self._gate_up)
        yield Gate(self._gate_up, config.activation, self._gated)
        yield from self._added(self._gated, layer.down, layer.post_mlp_norm)

    def _added(self, source: Buffer, matrix: PackedMatrix, norm: Array | None) -> Iterator[Op]:
        """Add a product to the hidden states, normalised first where the family does so."""
        if norm is None:
            yield from _product(source, (matrix,), self.hidden, add=True)
            return
        yield from _product(source, (matrix,), self._branch)
        yield Norm(self._branch, norm, self._decoder.config.norm_eps, self.hidden, add=True)


def _product(
    source: Buffer, matrices: tuple[PackedMatrix, ...], out: Buffer, *, add: bool = False
) -> Iterator[Op]:
    if _int8(*matrices):
        yield Quantize(source)
    yield Linear(source, matrices, out, add)


def _int8(*matrices: PackedMatrix) -> bool:
    """Whether one of them multiplies 8-bit activations."""
    return any(matrix.int8_activations for matrix in matrices)
