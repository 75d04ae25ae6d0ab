"""A decoder's configuration from GGUF metadata; what we cannot compute is refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.model.config import ModelConfig, checked
from engine.model.fields import MAX_CONTEXT, MAX_LAYERS, Fields
from engine.model.rope import Rope
from engine.protocol.text.errors import ModelFileError


def config_from_gguf(
    path: Path, metadata: Mapping[str, Any], tensor_shapes: Mapping[str, tuple[int, ...]]
) -> ModelConfig:
    """The configuration that GGUF metadata describes; raises ModelFileError."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise ModelFileError(
            path, f"architecture {architecture!r} is not supported; supported: 'llama'"
        )
    fields = Fields(path, metadata, "llama.")
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
    num_layers = fields.size("block_count", limit=MAX_LAYERS)
    return checked(
        path,
        ModelConfig(
            layer_windows=(None,) * num_layers,
            hidden_size=hidden_size,
            intermediate_size=fields.size("feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=fields.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            vocab_size=embedding[0],
            context_length=fields.size("context_length", limit=MAX_CONTEXT),
            norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
            ropes=(Rope(head_dim, fields.positive("rope.freq_base", 10000.0)),),
            layer_ropes=(0,) * num_layers,
            attention_scale=head_dim**-0.5,
        ),
    )
