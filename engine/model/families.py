"""The table of what is served: families, rotary embeddings, and what is refused and why.

Documentation, `model list` and `doctor` read it; every refusal of an unknown model quotes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share an architecture, and the names by which files know it.

    `model_types` are config.json's `model_type`, `architectures` are GGUF's `general.architecture`.
    """

    name: str
    models: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]


SUPPORTED = (
    Family(
        "Llama", "Llama 1, 2, 3, 3.1 to 3.3, and what shares their form", ("llama",), ("llama",)
    ),
    Family(
        "Mistral", "Mistral 7B, Nemo, Small 3; Ministral 8B", ("mistral", "ministral"), ("llama",)
    ),
    Family("Qwen2", "Qwen2, Qwen2.5, QwQ", ("qwen2",), ("qwen2",)),
    Family("Qwen3", "Qwen3, dense", ("qwen3",), ("qwen3",)),
    Family("Gemma 3", "Gemma 3, text only", ("gemma3_text", "gemma3"), ("gemma3",)),
)

ROPE_TYPES = ("default", "linear", "llama3", "yarn")

REFUSED = (
    "mixture of experts",
    "rope types other than " + ", ".join(ROPE_TYPES),
    "rotary embedding of a part of each head",
    "softcapping of attention scores or logits",
    "code that comes with a model (auto_map)",
    "quantised safetensors (quantization_config)",
    "vision and audio weights",
)


def model_types() -> tuple[str, ...]:
    """Every served `model_type` of config.json."""
    return _unique(name for family in SUPPORTED for name in family.model_types)


def architectures() -> tuple[str, ...]:
    """Every served `general.architecture` of GGUF."""
    return _unique(name for family in SUPPORTED for name in family.architectures)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
