"""A decoder's configuration from a Hugging Face config.json; what we cannot compute is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.model.config import ModelConfig, checked
from engine.model.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from engine.model.rope import Rope

_MODEL_TYPES = ("llama", "mistral", "ministral")


def config_from_json(path: Path, values: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a Hugging Face config.json describes; raises ModelFileError.

    Mistral and Ministral are Llama with a sliding window, in every layer or in those listed. What
    they would take from their classes' own defaults must be stated.
    """
    fields = Fields(path, values)
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
    context_length = fields.size("max_position_embeddings", 2048, limit=MAX_CONTEXT)
    head_dim = fields.size("head_dim", hidden_size // num_heads)
    windows = _layer_windows(fields, context_length)
    return checked(
        path,
        ModelConfig(
            layer_windows=windows,
            hidden_size=hidden_size,
            intermediate_size=fields.size("intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=fields.size("num_key_value_heads", num_heads),
            head_dim=head_dim,
            vocab_size=fields.size("vocab_size", limit=1 << 24),
            context_length=context_length,
            norm_eps=fields.positive("rms_norm_eps", 1e-6),
            ropes=(Rope(head_dim, _rope_theta(path, fields)),),
            layer_ropes=(0,) * len(windows),
            attention_scale=head_dim**-0.5,
        ),
    )


def _layer_windows(fields: Fields, context_length: int) -> tuple[int | None, ...]:
    """The window of every layer; one that no sequence can outgrow is none."""
    num_layers = fields.size("num_hidden_layers", limit=MAX_LAYERS)
    if fields.get("model_type") == "llama":
        return (None,) * num_layers
    window: int | None = None
    if fields.stated("sliding_window") is not None:
        window = fields.size("sliding_window", limit=MAX_CONTEXT)
    windows = _windows_by_type(fields, window, num_layers)
    return tuple(None if w is None or w >= context_length else w for w in windows)


def _windows_by_type(fields: Fields, window: int | None, num_layers: int) -> tuple[int | None, ...]:
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


def _rope_theta(path: Path, fields: Fields) -> float:
    """`rope_theta`, or since transformers 5 inside `rope_parameters`; only plain rope passes."""
    theta: float | None = None
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise fields.error(f"{name} is not an object")
        inner = Fields(path, rope)
        kind = inner.get("rope_type", inner.get("type", "default"))
        if kind != "default":
            raise fields.error(f"rope scaling {kind!r} is not supported")
        if any(isinstance(value, dict) for value in rope.values()):
            raise fields.error(f"{name} by layer type are not supported")
        inner.refuse("partial_rotary_factor", (1, 1.0))
        if inner.get("rope_theta") is not None:
            theta = inner.positive("rope_theta")
    return theta if theta is not None else fields.positive("rope_theta", 10000.0)
