"""Small random models of every family as transformers builds them, and as GGUF files.

Norms and biases are random too, and weights large enough that every part of a model matters.
"""

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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
    "initializer_range": 0.15,
}
ONE_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
TWO_ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 100000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
}
# What a family has besides. Gemma's scores are not scaled by the head size unless a test says so.
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, ONE_ROPE),
    "mistral": (MistralForCausalLM, MistralConfig, {**ONE_ROPE, "sliding_window": 12}),
    "ministral": (MinistralForCausalLM, MinistralConfig, {**ONE_ROPE, "sliding_window": 12}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, ONE_ROPE),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, ONE_ROPE),
    "gemma3_text": (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        {
            **TWO_ROPES,
            "num_hidden_layers": 4,
            "sliding_window": 12,
            "layer_types": [
                "sliding_attention",
                "sliding_attention",
                "full_attention",
                "sliding_attention",
            ],
            "query_pre_attn_scalar": 9,
        },
    ),
}


def tiny(family: str, seed: int = 0, **overrides) -> PreTrainedModel:
    """A model of two layers or a few, with grouped heads; `overrides` are of its configuration."""
    kind, config, extra = FAMILIES[family]
    torch.manual_seed(seed)
    model = kind(config(**{**SIZES, **extra, **overrides})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # Gemma adds one to what it stores
                weight.uniform_(-0.5, 0.5) if family == "gemma3_text" else weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_(0, 0.5)
    return model


def tiny_llama(seed: int = 0, **overrides) -> LlamaForCausalLM:
    """Two layers, grouped heads."""
    return tiny("llama", seed, **overrides)


def tiny_mistral(window: int | None, **overrides) -> MistralForCausalLM:
    """The same with a sliding window in every layer."""
    return tiny("mistral", sliding_window=window, **overrides)


def tiny_ministral(layer_windows: Sequence[int | None], **overrides) -> MinistralForCausalLM:
    """The same with a sliding window, of one size, in some layers."""
    layers = {
        "num_hidden_layers": len(layer_windows),
        "sliding_window": next(window for window in layer_windows if window is not None),
        "layer_types": ["sliding_attention" if w else "full_attention" for w in layer_windows],
    }
    return tiny("ministral", **{**layers, **overrides})


ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
}
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def write_gguf(model: PreTrainedModel, path: Path, quantization: str = "F32") -> None:
    """As llama.cpp's converter would: its names, reversed shapes, Llama's rotary rows interleaved.

    The format has no word for Gemma's score scale: it must be the head size.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.model_type in ("mistral", "gemma3_text"):
        writer.add_sliding_window(config.sliding_window)
    _add_rope(writer, model)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _add_tensor(writer, name, weight.numpy(), config.model_type, head_dim, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_rope(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    """Base and scaling; of Gemma 3's two, that of its full layers, as the other is never scaled."""
    rope = model.config.rope_parameters
    if "full_attention" in rope:
        writer.add_key_value(
            "gemma3.rope.freq_base_swa",
            rope["sliding_attention"]["rope_theta"],
            gguf.GGUFValueType.FLOAT32,
        )
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "llama3":
        rotary = model.model.rotary_emb
        plain, _ = rotary.compute_default_rope_parameters(model.config)
        writer.add_tensor("rope_freqs.weight", (plain / rotary.inv_freq).numpy())
    elif rope["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _add_tensor(writer, name: str, weight: np.ndarray, model_type: str, head_dim, quantization):
    llama = ARCHITECTURES[model_type] == "llama"
    if llama and name.rsplit(".", 1)[0].endswith(("q_proj", "k_proj")):
        halves = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
        weight = halves.swapaxes(1, 2).reshape(weight.shape)
    if model_type == "gemma3_text" and "norm" in name:
        weight = weight + np.float32(1)
    kind = gguf.GGMLQuantizationType[quantization if weight.ndim > 1 else "F32"]
    data = gguf.quants.quantize(np.ascontiguousarray(weight), kind)
    names = {**GGUF_NAMES, **GEMMA_NAMES} if model_type == "gemma3_text" else GGUF_NAMES
    writer.add_tensor(_gguf_name(name, names), data, raw_dtype=kind)


def _gguf_name(name: str, names: dict[str, str]) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{names[part]}.{suffix}"


def round_weights(model: PreTrainedModel, quantization: str) -> None:
    """Replace the matrices by what their quantised forms stand for."""
    kind = gguf.GGMLQuantizationType[quantization]
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                stored = gguf.quants.quantize(weight.numpy(), kind)
                weight.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind)))
