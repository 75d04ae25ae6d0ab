"""What a decoder's tensors are called, here and in files, and the shape each must have.

Here they are `embedding`, `norm`, `head` and, for every layer N, `layers.N.q` and so on: one set of
names for all families, of which a decoder has those that its configuration implies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from engine.model.config import ModelConfig

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of such a decoder; `head` is among them though it may be tied."""
    tops = {
        "embedding": (config.vocab_size, config.hidden_size),
        "norm": (config.hidden_size,),
        "head": (config.vocab_size, config.hidden_size),
    }
    parts = _layer_shapes(config)
    layers = {
        f"layers.{layer}.{part}": shape
        for layer in range(config.num_layers)
        for part, shape in parts.items()
    }
    return tops | layers


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.num_heads * config.head_dim
    shared = config.num_kv_heads * config.head_dim
    parts: dict[str, Shape] = {
        "attention_norm": (hidden,),
        "q": (query, hidden),
        "k": (shared, hidden),
        "v": (shared, hidden),
        "o": (hidden, query),
        "mlp_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    if config.qkv_bias:
        parts |= {"q_bias": (query,), "k_bias": (shared,), "v_bias": (shared,)}
    if config.o_bias:
        parts["o_bias"] = (hidden,)
    if config.qk_norm:
        parts |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.post_norms:
        parts |= {"post_attention_norm": (hidden,), "post_mlp_norm": (hidden,)}
    return parts


@dataclass(frozen=True, slots=True)
class Naming:
    """One container's names; `layers` is what its layers' names begin with, before their number."""

    tops: Mapping[str, str]
    layers: str
    parts: Mapping[str, str]

    def __call__(self, name: str) -> str:
        """The container's name of one of ours."""
        if not name.startswith("layers."):
            return self.tops[name]
        _, layer, part = name.split(".")
        return f"{self.layers}{layer}.{self.parts[part]}"


GGUF: Final = Naming(
    tops={
        "embedding": "token_embd.weight",
        "norm": "output_norm.weight",
        "head": "output.weight",
    },
    layers="blk.",
    parts={
        "attention_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "o": "attn_output.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "o_bias": "attn_output.bias",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "post_attention_norm": "post_attention_norm.weight",
        "post_mlp_norm": "post_ffw_norm.weight",
    },
)

_HUGGING_FACE_PARTS: Final = {
    "attention_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
# Gemma's name for the norm after attention is everyone else's for the one before the MLP.
_POST_NORM_PARTS: Final = {
    **_HUGGING_FACE_PARTS,
    "post_attention_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}
# Where the language model of Gemma 3 lies in folders that have room for a vision model: by what
# its embedding is called, the prefixes of the decoder and of its head.
_NESTED: Final = {
    "model.language_model.embed_tokens.weight": ("model.language_model.", ""),
    "language_model.model.embed_tokens.weight": ("language_model.model.", "language_model."),
}


def hugging_face(config: ModelConfig, present: Iterable[str]) -> Naming:
    """The names in a folder of safetensors whose tensors are called `present`."""
    names = set(present)
    prefix, head_prefix = next(
        (prefixes for embedding, prefixes in _NESTED.items() if embedding in names),
        ("model.", ""),
    )
    return Naming(
        tops={
            "embedding": f"{prefix}embed_tokens.weight",
            "norm": f"{prefix}norm.weight",
            "head": f"{head_prefix}lm_head.weight",
        },
        layers=f"{prefix}layers.",
        parts=_POST_NORM_PARTS if config.post_norms else _HUGGING_FACE_PARTS,
    )
