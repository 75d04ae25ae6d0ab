"""The shape of a decoder: every size and constant by which one model differs from another.

`config_gguf` and `config_json` read it from files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.model.rope import Rope
from engine.protocol.text.errors import ModelFileError

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one decoder. `head_dim` need not be hidden_size / num_heads.

    `layer_windows` has one entry per layer: how many of the latest tokens, itself included, a
    position attends to, or None for all of them. `layer_ropes` says of every layer which of `ropes`
    rotates its queries and keys.

    `qkv_bias` and `o_bias`: these projections add a vector. `qk_norm`: each query and key head is
    RMS-normalised before it is rotated. `post_norms`: what attention and MLP give is RMS-normalised
    before it is added. The embedding is multiplied by `embedding_scale`, scores by
    `attention_scale`.
    """

    layer_windows: tuple[int | None, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    attention_scale: float
    activation: Activation = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_windows)


def checked(path: Path, config: ModelConfig) -> ModelConfig:
    """Refuse sizes that do not fit together with ModelFileError."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(
            path,
            f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads",
        )
    if config.head_dim % 2:
        raise ModelFileError(path, f"a head size of {config.head_dim} cannot be rotated: it is odd")
    return config


def indexed(layers: Iterable[Rope]) -> tuple[tuple[Rope, ...], tuple[int, ...]]:
    """`ropes` and `layer_ropes` of layers that rotate like these, one after another."""
    wanted = tuple(layers)
    ropes = tuple(dict.fromkeys(wanted))
    return ropes, tuple(map(ropes.index, wanted))
