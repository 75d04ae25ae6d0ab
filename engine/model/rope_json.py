"""Rotary embeddings from a Hugging Face config.json, in the words of transformers 5 and before.

Since 5 everything is in `rope_parameters`, for Gemma 3 once per layer type; before, the base was
`rope_theta` and the rest `rope_scaling`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.model.families import ROPE_TYPES
from engine.model.fields import MAX_CONTEXT, Fields
from engine.model.rope import Linear, Llama3, Rope, Scaling, Unscaled, Yarn, yarn_range, yarn_scale

_LAYER_TYPES = ("full_attention", "sliding_attention")


def rope(fields: Fields, head_dim: int, context: int) -> Rope:
    """The one rope of a model whose layers all rotate alike; raises ModelFileError."""
    name, stated = _stated(fields)
    if any(isinstance(value, dict) for value in stated.values()):
        raise fields.error(f"{name} by layer type are not supported here")
    theta = fields.positive("rope_theta", 10_000.0)
    return _rope(fields, stated, theta, head_dim, context)


def ropes_by_layer_type(fields: Fields, head_dim: int, context: int) -> tuple[Rope, Rope]:
    """Gemma 3's: that of its full layers, which alone may be scaled, and that of the others."""
    full: Mapping[str, Any] = {}
    local: Mapping[str, Any] = {}
    name, stated = _stated(fields)
    if name == "rope_scaling":
        full = stated
    elif stated:
        for key, value in stated.items():
            if key not in _LAYER_TYPES or not isinstance(value, dict | None):
                raise fields.error(f"{name} has {key!r}, not an object for each layer type")
        full, local = (stated.get(key) or {} for key in _LAYER_TYPES)
    thetas = (
        fields.positive("rope_theta", 1_000_000.0),
        fields.positive("rope_local_base_freq", 10_000.0),
    )
    return (
        _rope(fields, full, thetas[0], head_dim, context),
        _rope(fields, local, thetas[1], head_dim, context),
    )


def _stated(fields: Fields) -> tuple[str, Mapping[str, Any]]:
    """The name and value of whichever object the file has."""
    names = [name for name in ("rope_parameters", "rope_scaling") if fields.get(name) is not None]
    if len(names) == 2 and fields.get(names[0]) != fields.get(names[1]):
        raise fields.error("rope_parameters and rope_scaling contradict each other")
    if not names:
        return "rope_parameters", {}
    value = fields.get(names[0])
    if not isinstance(value, dict):
        raise fields.error(f"{names[0]} is not an object")
    return names[0], value


def _rope(
    fields: Fields, stated: Mapping[str, Any], theta: float, head_dim: int, context: int
) -> Rope:
    inner = Fields(fields.path, stated)
    for place in (fields, inner):
        place.refuse("partial_rotary_factor", (1, 1.0))
    inner.refuse("mrope_section")
    theta = inner.positive("rope_theta", theta)
    if theta <= 1:
        raise fields.error(f"rope_theta is {theta}, which is not above 1")
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind not in ROPE_TYPES:
        supported = ", ".join(map(repr, ROPE_TYPES))
        raise fields.error(f"rope type {kind!r} is not supported; supported: {supported}")
    original = fields.get("original_max_position_embeddings", context)
    original = inner.size("original_max_position_embeddings", original, limit=MAX_CONTEXT)
    plain = Rope(head_dim, theta)
    return replace(plain, scaling=_scaling(inner, kind, plain, original, context))


def _scaling(inner: Fields, kind: str, plain: Rope, original: int, context: int) -> Scaling:
    """The scaling called `kind` of a model that was trained on `original` tokens before it."""
    if kind == "linear":
        return Linear(inner.positive("factor"))
    if kind == "llama3":
        low = inner.positive("low_freq_factor")
        high = inner.positive("high_freq_factor")
        if high <= low:
            raise inner.error(f"high_freq_factor {high} is not above low_freq_factor {low}")
        return Llama3(inner.positive("factor"), low, high, original)
    if kind == "yarn":
        factor = inner.positive("factor", context / original)
        turns = inner.positive("beta_fast", 32.0), inner.positive("beta_slow", 1.0)
        rounded = inner.truth("truncate", default=True)
        ramp = yarn_range(plain.head_dim, plain.theta, original, turns, rounded=rounded)
        return Yarn(factor, *ramp, _yarn_scale(inner, factor))
    return Unscaled()


def _yarn_scale(inner: Fields, factor: float) -> float:
    if inner.get("attention_factor") is not None:
        return inner.positive("attention_factor")
    if inner.get("mscale") and inner.get("mscale_all_dim"):
        whole = yarn_scale(factor, inner.positive("mscale_all_dim"))
        return yarn_scale(factor, inner.positive("mscale")) / whole
    return yarn_scale(factor)
