"""Small random models of the Llama shape as transformers builds them, and as GGUF files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import gguf
import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


Model = TypeVar("Model", bound=PreTrainedModel)

SIZES = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "max_position_embeddings": 512,
    "rms_norm_eps": 2.0**-16,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "initializer_range": 0.15,
}


def tiny_llama(seed: int = 0, **overrides) -> LlamaForCausalLM:
    """Two layers, grouped heads, and weights large enough that every part matters."""
    return _random(LlamaForCausalLM, LlamaConfig(**{**SIZES, **overrides}), seed)


def tiny_mistral(window: int | None, **overrides) -> MistralForCausalLM:
    """The same with a sliding window in every layer."""
    config = MistralConfig(**{**SIZES, "sliding_window": window, **overrides})
    return _random(MistralForCausalLM, config)


def tiny_ministral(layer_windows: Sequence[int | None], **overrides) -> MinistralForCausalLM:
    """The same with a sliding window, of one size, in some layers."""
    layers = {
        "num_hidden_layers": len(layer_windows),
        "sliding_window": next(window for window in layer_windows if window is not None),
        "layer_types": ["sliding_attention" if w else "full_attention" for w in layer_windows],
    }
    return _random(MinistralForCausalLM, MinistralConfig(**{**SIZES, **layers, **overrides}))


def _random(kind: type[Model], config: PreTrainedConfig, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


def write_gguf(model: LlamaForCausalLM, path: Path, quantization: str = "F32") -> None:
    """As llama.cpp's converter would: names, reversed shapes, interleaved rotary rows."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add_tensor(writer, name, weight.numpy(), config.head_dim, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(writer, name: str, weight: np.ndarray, head_dim: int, quantization: str) -> None:
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        halves = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
        weight = halves.swapaxes(1, 2).reshape(weight.shape)
    kind = gguf.GGMLQuantizationType[quantization if weight.ndim > 1 else "F32"]
    data = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
    writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"
