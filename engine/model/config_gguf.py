"""A decoder's configuration from GGUF metadata; what we cannot compute is refused by name.

What the format leaves to its readers is done as llama.cpp does it, whose format it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engine.model.config import ModelConfig, checked, indexed
from engine.model.families import architectures
from engine.model.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from engine.model.rope import (
    Divisors,
    Linear,
    Rope,
    Scaling,
    Unscaled,
    Yarn,
    yarn_range,
    yarn_scale,
)
from engine.protocol.text.errors import ModelFileError

Shapes = Mapping[str, tuple[int, ...]]

# Gemma 3 27B, known by its layers alone, scales scores by the hidden size of a head.
_GEMMA_27B_LAYERS = 62
_NOTHING = (0, 1, -1)  # how converters write factors that change nothing


def config_from_gguf(
    path: Path, metadata: Mapping[str, Any], shapes: Shapes, rope_divisors: tuple[float, ...] = ()
) -> ModelConfig:
    """The configuration that GGUF metadata describes; raises ModelFileError.

    `rope_divisors` are the values of the tensor `rope_freqs.weight`, where the file has one.
    """
    architecture = metadata.get("general.architecture")
    read = _READERS.get(architecture) if isinstance(architecture, str) else None
    if read is None:
        supported = ", ".join(map(repr, architectures()))
        raise ModelFileError(
            path, f"architecture {architecture!r} is not supported; supported: {supported}"
        )
    fields = Fields(path, metadata, f"{architecture}.")
    fields.refuse("expert_count", (0,))
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "attention.scale"):
        fields.refuse(name, (0,))
    config = checked(path, read(fields, shapes))
    return _with_divisors(fields, config, rope_divisors) if rope_divisors else config


def _llama(fields: Fields, shapes: Shapes) -> ModelConfig:
    """Llama, and Mistral, whose window is in every layer."""
    config = _decoder(fields, shapes)
    window = _window(fields, config)
    return replace(config, layer_windows=(window,) * config.num_layers)


def _qwen2(fields: Fields, shapes: Shapes) -> ModelConfig:
    return replace(_qwen(fields, shapes), qkv_bias=True)


def _qwen3(fields: Fields, shapes: Shapes) -> ModelConfig:
    return replace(_qwen(fields, shapes), qk_norm=True)


def _qwen(fields: Fields, shapes: Shapes) -> ModelConfig:
    """The format has no word for which of Qwen's layers slide, so a window is refused."""
    config = _decoder(fields, shapes)
    if _window(fields, config) is not None:
        fields.refuse("attention.sliding_window")
    return config


def _gemma3(fields: Fields, shapes: Shapes) -> ModelConfig:
    """Five windowed layers to a full one, which alone is scaled; norms are stored as they act."""
    config = _decoder(fields, shapes)
    window, sliding = _window(fields, config), _gemma_pattern(fields, config.num_layers)
    full = config.ropes[0]
    local = Rope(full.head_dim, fields.positive("rope.freq_base_swa", 10_000.0))
    ropes, layer_ropes = indexed(local if slides else full for slides in sliding)
    scaled = config.head_dim
    if config.num_layers == _GEMMA_27B_LAYERS:
        scaled = config.hidden_size // config.num_heads
    return replace(
        config,
        layer_windows=tuple(window if slides else None for slides in sliding),
        ropes=ropes,
        layer_ropes=layer_ropes,
        attention_scale=scaled**-0.5,
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        embedding_scale=config.hidden_size**0.5,
    )


def _gemma_pattern(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers slide: listed one by one, or all but every n-th. Without a window, none does."""
    if fields.get("attention.sliding_window", 0) == 0:
        return (False,) * num_layers
    listed = fields.get("attention.sliding_window_pattern")
    if isinstance(listed, list):
        if len(listed) != num_layers or not all(isinstance(slides, bool) for slides in listed):
            raise fields.error(f"sliding_window_pattern is not a list of {num_layers} truths")
        return tuple(listed)
    period = fields.size("attention.sliding_window_pattern", 6)
    return tuple((i + 1) % period != 0 for i in range(num_layers))


_READERS: Final[Mapping[str, Callable[[Fields, Shapes], ModelConfig]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}


def _decoder(fields: Fields, shapes: Shapes) -> ModelConfig:
    """What all architectures share: Llama's form, with the biases that the file has."""
    num_heads = fields.size("attention.head_count")
    hidden_size = fields.size("embedding_length")
    head_dim = fields.size("attention.key_length", max(1, hidden_size // num_heads))
    fields.refuse("attention.value_length", (head_dim,))
    fields.refuse("rope.dimension_count", (head_dim,))
    embedding = shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise fields.error("tensor 'token_embd.weight' is missing or not a matrix")
    num_layers = fields.size("block_count", limit=MAX_LAYERS)
    context = fields.size("context_length", limit=MAX_CONTEXT)
    return ModelConfig(
        layer_windows=(None,) * num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=fields.size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding[0],
        context_length=context,
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        ropes=(_rope(fields, head_dim, context),),
        layer_ropes=(0,) * num_layers,
        attention_scale=head_dim**-0.5,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        o_bias="blk.0.attn_output.bias" in shapes,
    )


def _window(fields: Fields, config: ModelConfig) -> int | None:
    """The stated window, None where there is none that a sequence could outgrow."""
    if fields.get("attention.sliding_window", 0) == 0:
        return None
    window = fields.size("attention.sliding_window", limit=MAX_CONTEXT)
    return None if window >= config.context_length else window


def _rope(fields: Fields, head_dim: int, context: int) -> Rope:
    theta = fields.positive("rope.freq_base", 10_000.0)
    if theta <= 1:
        raise fields.error(f"rope.freq_base is {theta}, which is not above 1")
    return Rope(head_dim, theta, _scaling(fields, head_dim, theta, context))


def _scaling(fields: Fields, head_dim: int, theta: float, context: int) -> Scaling:
    """None, linear or YaRN. Without a type, a factor means linear; 0 is a factor left unset."""
    kind = fields.get("rope.scaling.type", "linear")
    name = "rope.scaling.factor" if fields.get("rope.scaling.factor") else "rope.scale_linear"
    factor = fields.positive(name) if fields.get(name) else 1.0
    fields.refuse("rope.scaling.attn_factor", (0, 1))
    if kind == "none" or (kind == "linear" and factor == 1):
        return Unscaled()
    if kind == "linear":
        return Linear(factor)
    if kind != "yarn":
        fields.refuse("rope.scaling.type")
    for unserved in ("yarn_ext_factor", "yarn_attn_factor", "yarn_log_multiplier"):
        fields.refuse(f"rope.scaling.{unserved}", _NOTHING)
    original = fields.size("rope.scaling.original_context_length", context, limit=MAX_CONTEXT)
    turns = (
        fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        fields.positive("rope.scaling.yarn_beta_slow", 1.0),
    )
    return Yarn(factor, *yarn_range(head_dim, theta, original, turns), yarn_scale(factor))


def _with_divisors(fields: Fields, config: ModelConfig, divisors: tuple[float, ...]) -> ModelConfig:
    """Llama 3's scaling, which the format keeps as one divisor for each pair of elements."""
    if len(config.ropes) != 1 or config.ropes[0].scaling != Unscaled():
        raise fields.error("tensor 'rope_freqs.weight' beside another scaling is not supported")
    if len(divisors) != config.head_dim // 2:
        raise fields.error(f"tensor 'rope_freqs.weight' is not of {config.head_dim // 2} numbers")
    if not all(1e-30 <= divisor <= 1e30 for divisor in divisors):
        raise fields.error("tensor 'rope_freqs.weight' has a divisor that is not positive")
    (plain,) = config.ropes
    return replace(config, ropes=(replace(plain, scaling=Divisors(divisors)),))
