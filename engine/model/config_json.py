"""A decoder's configuration from a Hugging Face config.json; what we cannot compute is refused.

What a file leaves out is taken from the defaults of the reference implementation's classes, where
published models rely on them; elsewhere it must be stated.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engine.model.config import ModelConfig, checked, indexed
from engine.model.families import model_types
from engine.model.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from engine.model.rope_json import rope, ropes_by_layer_type

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_SENSES = ("vision_config", "audio_config")


def config_from_json(path: Path, values: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a Hugging Face config.json describes; raises ModelFileError."""
    fields = Fields(path, values)
    model_type = values.get("model_type")
    read = _READERS.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        raise fields.error(
            f"model_type {model_type!r} is not supported{_because(fields)}; "
            f"supported: {', '.join(map(repr, model_types()))}"
        )
    if fields.get("quantization_config") is not None:
        raise fields.error("quantized safetensors (quantization_config) are not supported")
    return checked(path, read(fields))


def text_fields(path: Path, values: Mapping[str, Any]) -> Fields:
    """The fields of the language model: those of `text_config` where Gemma 3 nests it."""
    fields = Fields(path, values)
    if values.get("model_type") != "gemma3":
        return fields
    text = fields.stated("text_config")
    if not isinstance(text, dict):
        raise fields.error("text_config is not an object")
    return Fields(path, text)


def has_tied_head(path: Path, values: Mapping[str, Any]) -> bool:
    """Whether the embedding is also the output head, by the file or by its family's default."""
    gemma = values.get("model_type") in ("gemma3", "gemma3_text")
    outer = Fields(path, values).truth("tie_word_embeddings", default=gemma)
    return text_fields(path, values).truth("tie_word_embeddings", default=outer)


def _because(fields: Fields) -> str:
    """Why a model of an unknown type could not be served, where its fields tell."""
    reasons = []
    if any(fields.get(name) for name in _EXPERTS):
        reasons.append("mixture of experts")
    reasons += [name for name in (*_SOFTCAPS, *_SENSES) if fields.get(name) is not None]
    if fields.get("auto_map") is not None:
        reasons.append("its own code, auto_map, is not run")
    return f" ({', '.join(reasons)})" if reasons else ""


def _llama(fields: Fields) -> ModelConfig:
    layers = (False,) * _num_layers(fields)
    bias = fields.truth("attention_bias", default=False)
    fields.refuse("mlp_bias", (False,))
    return replace(_decoder(fields, layers, None), qkv_bias=bias, o_bias=bias)


def _mistral(fields: Fields) -> ModelConfig:
    if fields.get("layer_types") is not None:
        raise fields.error("layer_types are not supported for 'mistral', but for 'ministral'")
    return _ministral(fields)


def _ministral(fields: Fields) -> ModelConfig:
    """Llama with a sliding window in every layer, or in those listed."""
    fields.refuse("attention_bias", (False,))
    _require_sizes(fields)
    window = _window(fields) if fields.stated("sliding_window") is not None else None
    all_alike = (window is not None,) * _num_layers(fields)
    return _decoder(fields, _sliding_layers(fields, window, all_alike), window)


def _qwen2(fields: Fields) -> ModelConfig:
    """Llama with biases on queries, keys and values."""
    _require_sizes(fields)
    fields.refuse("use_mrope", (False,))
    return replace(_qwen(fields, None), qkv_bias=True)


def _qwen3(fields: Fields) -> ModelConfig:
    """Llama with normalised query and key heads, of a size of their own."""
    _require_sizes(fields)
    bias = fields.truth("attention_bias", default=False)
    return replace(_qwen(fields, 128), qk_norm=True, qkv_bias=bias, o_bias=bias)


def _qwen(fields: Fields, head_dim: int | None) -> ModelConfig:
    window = None
    if fields.truth("use_sliding_window", default=False):
        window = _window(fields)
    first = fields.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int):
        raise fields.error(f"max_window_layers is {first!r}, not a count")
    upper = tuple(window is not None and i >= first for i in range(_num_layers(fields)))
    return _decoder(fields, _sliding_layers(fields, window, upper), window, head_dim)


def _gemma3(fields: Fields) -> ModelConfig:
    """Windowed and full layers with ropes of their own, norms on both sides, a scaled embedding."""
    for name in (*_SOFTCAPS, "use_bidirectional_attention"):
        fields.refuse(name, (False,))
    if fields.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        fields.refuse("hidden_activation")
    bias = fields.truth("attention_bias", default=False)
    window = _window(fields, 4096)
    period = fields.size("sliding_window_pattern", 6)
    pattern = tuple((i + 1) % period != 0 for i in range(_num_layers(fields)))
    sliding = _sliding_layers(fields, window, pattern)
    context = _context(fields, 131_072)
    head_dim = fields.size("head_dim", 256)
    full, local = ropes_by_layer_type(fields, head_dim, context)
    hidden_size = fields.size("hidden_size", 2304)
    ropes, layer_ropes = indexed(local if slides else full for slides in sliding)
    return ModelConfig(
        layer_windows=_windows(sliding, window, context),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size", 9216),
        num_heads=fields.size("num_attention_heads", 8),
        num_kv_heads=fields.size("num_key_value_heads", 4),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size", 262_208, limit=_MAX_VOCABULARY),
        context_length=context,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        ropes=ropes,
        layer_ropes=layer_ropes,
        attention_scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        activation="gelu_tanh",
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        post_norms=True,
        embedding_scale=hidden_size**0.5,
    )


def _gemma3_with_vision(fields: Fields) -> ModelConfig:
    """The language model of Gemma 3; its folder must hold no vision weights."""
    return _gemma3(text_fields(fields.path, fields.values))


_READERS: Final[Mapping[str, Callable[[Fields], ModelConfig]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "ministral": _ministral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3_with_vision,
}
_MAX_VOCABULARY = 1 << 24


def _decoder(
    fields: Fields, sliding: tuple[bool, ...], window: int | None, head_dim: int | None = None
) -> ModelConfig:
    """What all but Gemma share: Llama's form, and a window in the layers where `sliding` is true.

    `head_dim` is the default; None: the hidden size over the heads.
    """
    fields.refuse("hidden_act", ("silu",))
    num_heads = fields.size("num_attention_heads")
    hidden_size = fields.size("hidden_size")
    head_dim = fields.size("head_dim", head_dim or hidden_size // num_heads)
    context = _context(fields, 2048)
    return ModelConfig(
        layer_windows=_windows(sliding, window, context),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size", limit=_MAX_VOCABULARY),
        context_length=context,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        ropes=(rope(fields, head_dim, context),),
        layer_ropes=(0,) * len(sliding),
        attention_scale=head_dim**-0.5,
    )


def _require_sizes(fields: Fields) -> None:
    """Refuse to guess what has another default in every family."""
    for name in ("num_key_value_heads", "max_position_embeddings"):
        fields.stated(name)


def _num_layers(fields: Fields) -> int:
    return fields.size("num_hidden_layers", limit=MAX_LAYERS)


def _context(fields: Fields, default: int) -> int:
    return fields.size("max_position_embeddings", default, limit=MAX_CONTEXT)


def _window(fields: Fields, default: int | None = None) -> int:
    return fields.size("sliding_window", default, limit=MAX_CONTEXT)


def _sliding_layers(
    fields: Fields, window: int | None, unlisted: tuple[bool, ...]
) -> tuple[bool, ...]:
    """Which layers `layer_types` calls sliding; `unlisted` when it is absent."""
    types = fields.get("layer_types")
    if types is None:
        return unlisted
    if not isinstance(types, list) or len(types) != len(unlisted):
        raise fields.error(f"layer_types is not a list of {len(unlisted)} names")
    accepted = ["full_attention"] if window is None else ["full_attention", "sliding_attention"]
    for name in types:
        if name not in accepted:
            raise fields.error(f"layer type {name!r} is not supported, or has no window")
    return tuple(name == "sliding_attention" for name in types)


def _windows(sliding: tuple[bool, ...], window: int | None, context: int) -> tuple[int | None, ...]:
    """The window of every layer; one that no sequence can outgrow is none."""
    if window is None or window >= context:
        return (None,) * len(sliding)
    return tuple(window if slides else None for slides in sliding)
