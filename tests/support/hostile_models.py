"""A small whole model as a GGUF file and as a folder, written so that any part can be got wrong."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.protocol.text.gguf_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    byte_level_alphabet,
    container,
    pair,
    tensor,
)

HIDDEN, INNER, HEADS, SHARED, HEAD = 32, 64, 4, 2, 8
TOKENS = ["<|end|>", "<|user|>", "<|assistant|>", *byte_level_alphabet(), "ab", "abc"]
ROWS = 288
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# ggml's ids and bytes per block.
FLOAT, HALF, Q4_1, Q8_0, Q4_K = (0, 4, 1), (1, 2, 1), (3, 20, 32), (8, 34, 32), (12, 144, 256)
MATRICES = {
    "attn_q": (HEADS * HEAD, HIDDEN, Q4_1),
    "attn_k": (SHARED * HEAD, HIDDEN, Q8_0),
    "attn_v": (SHARED * HEAD, HIDDEN, HALF),
    "attn_output": (HIDDEN, HEADS * HEAD, FLOAT),
    "ffn_gate": (INNER, HIDDEN, Q4_1),
    "ffn_up": (INNER, HIDDEN, Q8_0),
    "ffn_down": (HIDDEN, INNER, Q4_1),
}
FOLDER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
METADATA: dict[str, tuple[int, Any]] = {
    "general.architecture": (STRING, "llama"),
    "general.alignment": (U32, 32),
    "llama.block_count": (U32, 1),
    "llama.context_length": (U32, 64),
    "llama.embedding_length": (U32, HIDDEN),
    "llama.feed_forward_length": (U32, INNER),
    "llama.attention.head_count": (U32, HEADS),
    "llama.attention.head_count_kv": (U32, SHARED),
    "llama.attention.key_length": (U32, HEAD),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "llama.rope.freq_base": (F32, 10000.0),
    "llama.rope.scaling.type": (STRING, "none"),
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.pre": (STRING, "smollm"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, TOKENS)),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [3] * 3 + [1] * (len(TOKENS) - 3))),
    "tokenizer.ggml.merges": (ARRAY, (STRING, ["a b", "ab c"])),
    "tokenizer.ggml.eos_token_id": (U32, 0),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.add_bos_token": (BOOL, False),
    "tokenizer.chat_template": (STRING, TEMPLATE),
}


def weights(rng: np.random.Generator) -> dict[str, tuple[tuple[int, ...], tuple, np.ndarray]]:
    """Of every tensor of the model its shape, type and bytes."""
    made: dict[str, tuple[tuple[int, ...], tuple, np.ndarray]] = {}

    def add(name: str, shape: tuple[int, ...], kind: tuple) -> None:
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
        made[name] = (shape, kind, _stored(values, kind))

    add("token_embd", (ROWS, HIDDEN), Q8_0)
    for name, (rows, columns, kind) in MATRICES.items():
        add(f"blk.0.{name}", (rows, columns), kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        add(name, (HIDDEN,), FLOAT)
    return made


def _stored(values: np.ndarray, kind: tuple) -> np.ndarray:
    if kind is FLOAT:
        return values.view(np.uint8).reshape(-1)
    if kind is HALF:
        return values.astype(np.float16).view(np.uint8).reshape(-1)
    _, block_bytes, elements = kind
    blocks = np.zeros((values.size // elements, block_bytes), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    codes = 4 if kind is Q4_1 else 2
    blocks[:, codes:] = np.random.default_rng(1).integers(0, 256, blocks[:, codes:].shape)
    return blocks.reshape(-1)


def gguf_bytes(
    metadata: dict[str, tuple[int, Any] | None] | None = None,
    change: Callable[[str, list[int], int, int], tuple[str, list[int], int, int]] | None = None,
    **options: Any,
) -> bytes:
    """The whole model as GGUF; `change` gets each tensor's name, stored shape, type and offset."""
    pairs = [
        pair(key, *value)
        for key, value in (METADATA | (metadata or {})).items()
        if value is not None
    ]
    entries, data = [], b""
    for name, (shape, kind, stored) in weights(np.random.default_rng(0)).items():
        entry = (f"{name}.weight", list(reversed(shape)), kind[0], len(data))
        name_, shape_, kind_, offset = change(*entry) if change else entry
        entries.append(tensor(name_, tuple(shape_), kind_, offset))
        data += stored.tobytes() + bytes(-stored.size % 32)
    return container(pairs, entries, data, **options)


def write_folder(folder: Path, *, shards: int = 1) -> None:
    """The whole model as a Hugging Face folder."""
    folder.mkdir()
    tensors: dict[str, tuple[list[int], bytes]] = {}
    for name, (shape, _, _) in weights(np.random.default_rng(0)).items():
        values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
        tensors[_folder_name(name)] = (list(shape), values.tobytes())
    names = sorted(tensors)
    for shard in range(shards):
        own = {name: tensors[name] for name in names[shard::shards]}
        (folder / _shard_name(shard, shards)).write_bytes(safetensors_bytes(own))
    if shards > 1:
        places = {name: _shard_name(i % shards, shards) for i, name in enumerate(names)}
        write_json(folder / "model.safetensors.index.json", {"weight_map": places})
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "tokenizer.json", TOKENIZER)
    write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    write_json(folder / "generation_config.json", {"eos_token_id": [0]})


def _folder_name(name: str) -> str:
    if name == "token_embd":
        return "model.embed_tokens.weight"
    if name == "output_norm":
        return "model.norm.weight"
    return f"model.layers.0.{FOLDER_NAMES[name.rsplit('.', maxsplit=1)[-1]]}.weight"


def _shard_name(shard: int, shards: int) -> str:
    if shards == 1:
        return "model.safetensors"
    return f"model-{shard + 1:05}-of-{shards:05}.safetensors"


def safetensors_bytes(
    tensors: dict[str, tuple[list[int], bytes]], header: Callable[[dict], Any] | None = None
) -> bytes:
    """A .safetensors file; `header` may change its header."""
    entries: dict[str, Any] = {}
    data = b""
    for name, (shape, stored) in tensors.items():
        offsets = [len(data), len(data) + len(stored)]
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        data += stored
    encoded = json.dumps(header(entries) if header else entries).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "num_hidden_layers": 1,
    "head_dim": HEAD,
    "vocab_size": ROWS,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, content in enumerate(TOKENS[:3])
    ],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    },
    "post_processor": None,
    "decoder": {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    },
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(TOKENS)},
        "merges": [["a", "b"], ["ab", "c"]],
    },
}
TOKENIZER_CONFIG: dict[str, Any] = {
    "bos_token": "<|user|>",
    "eos_token": {"content": "<|end|>"},
    "chat_template": TEMPLATE,
}


def write_json(path: Path, value: Any) -> None:
    """JSON with whatever Python can write into it, NaN included."""
    path.write_text(json.dumps(value))
