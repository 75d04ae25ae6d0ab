"""Reads a decoder's weights and packs them for the native CPU kernels, several at a time.

A matrix goes from the file to its packed form in one piece, and is forgotten in every other form
before its thread takes the next: no more is in memory at once than one matrix per thread.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from engine.model.config import ModelConfig
from engine.model.weights import Weights
from kernels.cpu.packed import PackedMatrix, pack
from kernels.matrix import Array, Matrix, QuantizedMatrix

# Four threads read and decode about as fast as memory allows, and each holds a whole matrix.
_MOST_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """One decoder layer; the norms that its family does not have are None."""

    attention_norm: Array
    q: PackedMatrix
    k: PackedMatrix
    v: PackedMatrix
    q_norm: Array | None
    k_norm: Array | None
    o: PackedMatrix
    post_attention_norm: Array | None
    mlp_norm: Array
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    post_mlp_norm: Array | None


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """All of a decoder's weights; `head` is `embedding` where they are tied."""

    embedding: PackedMatrix
    layers: tuple[NativeLayer, ...]
    norm: Array
    head: PackedMatrix


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A matrix to be packed: its name, its shape, and whether a bias goes with it."""

    name: str
    rows: int
    columns: int
    bias: bool = False


def load_native(weights: Weights, threads: int, *, int8_activations: bool) -> NativeWeights:
    """Read and pack everything; raises ModelFileError."""
    config = weights.config

    def load(wanted: _Wanted) -> PackedMatrix:
        matrix = weights.matrix(wanted.name, (wanted.rows, wanted.columns))
        bias = weights.vector(f"{wanted.name}_bias", wanted.rows) if wanted.bias else None
        int8 = int8_activations and _takes_int8(matrix)
        return pack(matrix, int8_activations=int8, bias=bias)

    wanted = list(_wanted(config, tied=weights.tied))
    with ThreadPoolExecutor(min(threads, _MOST_AT_ONCE)) as pool:
        packed = dict(zip((item.name for item in wanted), pool.map(load, wanted), strict=True))
    return NativeWeights(
        embedding=packed["embedding"],
        layers=tuple(_layer(weights, packed, f"layers.{n}") for n in range(config.num_layers)),
        norm=weights.vector("norm", config.hidden_size),
        head=packed.get("head", packed["embedding"]),
    )


def _takes_int8(matrix: Matrix) -> bool:
    """Whether there is a kernel for this weight and 8-bit activations."""
    return isinstance(matrix, QuantizedMatrix) and matrix.shape[1] % 32 == 0


def _wanted(config: ModelConfig, *, tied: bool) -> Iterator[_Wanted]:
    """Every matrix, the largest first: threads that begin with it are not left waiting for it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, shared = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield _Wanted("embedding", config.vocab_size, hidden)
    if not tied:
        yield _Wanted("head", config.vocab_size, hidden)
    for layer in range(config.num_layers):
        name = f"layers.{layer}"
        yield _Wanted(f"{name}.q", query, hidden, config.qkv_bias)
        yield _Wanted(f"{name}.k", shared, hidden, config.qkv_bias)
        yield _Wanted(f"{name}.v", shared, hidden, config.qkv_bias)
        yield _Wanted(f"{name}.o", hidden, query, config.o_bias)
        yield _Wanted(f"{name}.gate", inner, hidden)
        yield _Wanted(f"{name}.up", inner, hidden)
        yield _Wanted(f"{name}.down", hidden, inner)


def _layer(weights: Weights, packed: dict[str, PackedMatrix], name: str) -> NativeLayer:
    config = weights.config

    def vector(part: str, length: int, *, exists: bool = True) -> Array | None:
        return weights.vector(f"{name}.{part}", length) if exists else None

    hidden, head = config.hidden_size, config.head_dim
    return NativeLayer(
        attention_norm=weights.vector(f"{name}.attention_norm", hidden),
        q=packed[f"{name}.q"],
        k=packed[f"{name}.k"],
        v=packed[f"{name}.v"],
        q_norm=vector("q_norm", head, exists=config.qk_norm),
        k_norm=vector("k_norm", head, exists=config.qk_norm),
        o=packed[f"{name}.o"],
        post_attention_norm=vector("post_attention_norm", hidden, exists=config.post_norms),
        mlp_norm=weights.vector(f"{name}.mlp_norm", hidden),
        gate=packed[f"{name}.gate"],
        up=packed[f"{name}.up"],
        down=packed[f"{name}.down"],
        post_mlp_norm=vector("post_mlp_norm", hidden, exists=config.post_norms),
    )
