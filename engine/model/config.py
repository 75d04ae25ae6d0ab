"""The shape of a Llama-family decoder, read from GGUF metadata or a Hugging Face config.json.

Everything is checked here: whatever we cannot compute exactly is refused by name with
`ModelFileError`, so that the layers never meet a surprise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.protocol.text.errors import ModelFileError

_MAX_LAYERS = 1024
_MAX_DIMENSION = 1 << 20
_MAX_CONTEXT = 1 << 30
_MODEL_TYPES = ("llama", "mistral", "ministral")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of one decoder. `head_dim` need not be hidden_size / num_heads.

    `layer_windows` has one entry per layer: how many of the latest tokens, itself included, a
    position attends to, or None for all of them.
    """

    layer_windows: tuple[int | None, ...]
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rope_theta: float
    norm_eps: float

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_windows)


class _Fields:
    """Typed look-ups in an untrusted mapping; every failure names the file and the field."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self._path = path
        self._values = values
        self._prefix = prefix

    def error(self, reason: str) -> ModelFileError:
        return ModelFileError(self._path, reason)

    def stated(self, name: str) -> Any:
        """The field's value, null as None; refuse a file that leaves it to a default."""
        if self._prefix + name not in self._values:
            raise self.error(f"{self._prefix}{name} is not stated")
        return self._values[self._prefix + name]

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(self._prefix + name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None, limit: int = _MAX_DIMENSION) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise self.error(f"{self._prefix}{name} is {value!r}, not a count from 1 to {limit}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:
            raise self.error(f"{self._prefix}{name} is {value!r}, not a positive number")
        return float(value)

    def refuse(self, name: str, accepted: tuple[Any, ...]) -> None:
        """Refuse the field unless it is absent or one of `accepted`."""
        value = self.get(name)
        if value is not None and value not in accepted:
            raise self.error(f"{self._prefix}{name} = {value!r} is not supported")


def config_from_gguf(
    path: Path, metadata: Mapping[str, Any], tensor_shapes: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    """The configuration that GGUF metadata describes; raises ModelFileError."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelFileError(
            path, f"architecture {architecture!r} is not supported; supported: 'llama'"
        )
    fields = _Fields(path, metadata, "llama.")
    fields.refuse("expert_count", (0,))
    fields.refuse("rope.scaling.type", ("none",))
    # Without a type, a factor means linear scaling; 0 is how converters write "unset".
    fields.refuse("rope.scaling.factor", (0, 1))
    fields.refuse("rope.scale_linear", (0, 1))
    fields.refuse("attention.sliding_window", (0,))
    num_heads = fields.size("attention.head_count")
    hidden_size = fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads)
    fields.refuse("attention.value_length", (head_dim,))
    fields.refuse("rope.dimension_count", (head_dim,))
    embedding = tensor_shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise ModelFileError(path, "tensor 'token_embd.weight' is missing or not a matrix")
    return _checked(
        fields,
        ModelConfig(
            layer_windows=(None,) * fields.size("block_count", limit=_MAX_LAYERS),
            hidden_size=hidden_size,
            intermediate_size=fields.size("feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=fields.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=embedding[0],
            context_length=fields.size("context_length", limit=_MAX_CONTEXT),
            rope_theta=fields.positive("rope.freq_base", 10000.0),
            norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        ),
    )


def config_from_json(path: Path, values: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a Hugging Face config.json describes; raises ModelFileError.

    Mistral and Ministral are Llama with a sliding window, in every layer or in those listed. What
    they would take from their classes' own defaults must be stated.
    """
    fields = _Fields(path, values)
    model_type = values.get("model_type")
    if model_type not in _MODEL_TYPES:
        supported = ", ".join(map(repr, _MODEL_TYPES))
        raise fields.error(f"model_type {model_type!r} is not supported; supported: {supported}")
    fields.refuse("hidden_act", ("silu",))
    fields.refuse("attention_bias", (False,))
    fields.refuse("mlp_bias", (False,))
    if fields.get("quantization_config") is not None:
        raise fields.error("quantized safetensors (quantization_config) are not supported")
    num_heads = fields.size("num_attention_heads")
    if model_type != "llama":
        fields.stated("num_key_value_heads")
    hidden_size = fields.size("hidden_size")
    context_length = fields.size("max_position_embeddings", 2048, limit=_MAX_CONTEXT)
    return _checked(
        fields,
        ModelConfig(
            layer_windows=_layer_windows(fields, context_length),
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=fields.size("head_dim", hidden_size // num_heads),
            vocab_size=fields.size("vocab_size", limit=1 << 24),
            context_length=context_length,
            rope_theta=_rope_theta(path, fields),
            norm_eps=fields.positive("rms_norm_eps", 1e-6),
        ),
    )


def _layer_windows(fields: _Fields, context_length: int) -> tuple[int | None, ...]:
    """The window of every layer; one that no sequence can outgrow is none."""
    num_layers = fields.size("num_hidden_layers", limit=_MAX_LAYERS)
    if fields.get("model_type") == "llama":
        return (None,) * num_layers
    window: int | None = None
    if fields.stated("sliding_window") is not None:
        window = fields.size("sliding_window", limit=_MAX_CONTEXT)
    windows = _windows_by_type(fields, window, num_layers)
    return tuple(None if w is None or w >= context_length else w for w in windows)


def _windows_by_type(
    fields: _Fields, window: int | None, num_layers: int
) -> tuple[int | None, ...]:
    """`window` where `layer_types` says sliding; in every layer when it says nothing."""
    types = fields.get("layer_types")
    if types is None:
        return (window,) * num_layers
    if fields.get("model_type") != "ministral":
        raise fields.error("layer_types are supported for 'ministral' only")
    if not isinstance(types, list) or len(types) != num_layers:
        raise fields.error(f"layer_types is not a list of {num_layers} names")
    accepted = ["full_attention"] if window is None else ["full_attention", "sliding_attention"]
    for name in types:
        if name not in accepted:
            raise fields.error(f"layer type {name!r} is not supported, or has no window")
    return tuple(window if name == "sliding_attention" else None for name in types)


def _rope_theta(path: Path, fields: _Fields) -> float:
    """`rope_theta`, or since transformers 5 inside `rope_parameters`; only plain rope passes."""
    theta: float | None = None
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise fields.error(f"{name} is not an object")
        inner = _Fields(path, rope)
        kind = inner.get("rope_type", inner.get("type", "default"))
        if kind != "default":
            raise fields.error(f"rope scaling {kind!r} is not supported")
        if any(isinstance(value, dict) for value in rope.values()):
            raise fields.error(f"{name} by layer type are not supported")
        inner.refuse("partial_rotary_factor", (1, 1.0))
        if inner.get("rope_theta") is not None:
            theta = inner.positive("rope_theta")
    return theta if theta is not None else fields.positive("rope_theta", 10000.0)


def _checked(fields: _Fields, config: ModelConfig) -> ModelConfig:
    """Refuse sizes that do not fit together."""
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            f"{config.num_heads} query heads cannot share {config.num_kv_heads} key/value heads"
        )
    if config.head_dim % 2:
        raise fields.error(f"a head size of {config.head_dim} cannot be rotated: it is odd")
    return config
