import json
import math

import pytest

from engine.model.config_gguf import config_from_gguf
from engine.model.config_json import config_from_json
from engine.model.rope import Rope
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.json_file import read_json

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 64,
    "llama.rope.freq_base": 100000.0,
}
SHAPES = {"token_embd.weight": (49152, 576)}

JSON = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model"


def test_gguf_metadata(path):
    config = config_from_gguf(path, METADATA, SHAPES)
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.context_length) == (49152, 8192)
    assert (config.ropes, config.norm_eps) == ((Rope(64, 100000.0),), 1e-5)
    assert config.layer_windows == (None,) * 30
    assert config.layer_ropes == (0,) * 30


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"general.architecture": ["llama"]}, "supported: 'llama', 'qwen2', 'qwen3', 'gemma3'"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type = 'longrope'"),
        ({"llama.rope.scaling.factor": -4.0}, "rope.scaling.factor is -4.0"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor = 1.2"),
        ({"llama.rope.freq_base": 1.0}, "rope.freq_base is 1.0"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_attn_factor": 1.1},
            "yarn_attn_factor = 1.1",
        ),
        ({"llama.rope.dimension_count": 32}, "rope.dimension_count"),
        ({"llama.attention.sliding_window": -1}, "attention.sliding_window is -1"),
        ({"llama.attention.value_length": 32}, "value_length"),
        ({"llama.block_count": 0}, "block_count"),
        ({"llama.block_count": 10**9}, "block_count"),
        ({"llama.block_count": None}, "block_count is None"),
        ({"llama.block_count": True}, "block_count"),
        ({"llama.embedding_length": -1}, "embedding_length"),
        ({"llama.attention.head_count": [9, 9]}, "head_count"),
        ({"llama.attention.head_count_kv": 2}, "9 query heads cannot share 2"),
        ({"llama.attention.key_length": 33, "llama.rope.dimension_count": None}, "odd"),
        ({"llama.rope.freq_base": math.inf}, "freq_base"),
        ({"llama.attention.layer_norm_rms_epsilon": "1"}, "epsilon"),
    ],
)
def test_gguf_refusals_name_file_and_reason(path, change, reason):
    metadata = {**METADATA, **change}
    with pytest.raises(ModelFileError) as caught:
        config_from_gguf(path, metadata, SHAPES)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


def test_gguf_without_an_embedding_is_refused(path):
    with pytest.raises(ModelFileError, match="token_embd"):
        config_from_gguf(path, METADATA, {})


@pytest.mark.parametrize(
    ("extra", "theta"),
    [
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5),
        ({}, 10000.0),
    ],
)
def test_rope_base_of_old_and_new_configs(path, extra, theta):
    assert config_from_json(path, {**JSON, **extra}).ropes == (Rope(16, theta),)


def test_head_counts_default_as_in_transformers(path):
    config = config_from_json(path, JSON)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "qwen3_moe"}, "'qwen3_moe' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": 1}, "attention_bias is 1"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"type": "su"}}, "rope type 'su'"),
        ({"rope_scaling": {"type": ["yarn"]}}, "rope type ['yarn']"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}, "mrope_section"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-40}}, "factor is 1e-40"),
        (
            {"rope_scaling": {"type": "llama3", "low_freq_factor": 4, "high_freq_factor": 4}},
            "high_freq_factor 4.0 is not above",
        ),
        ({"rope_scaling": {"type": "yarn", "beta_fast": 0}}, "beta_fast is 0"),
        ({"rope_scaling": {"type": "yarn", "truncate": 1}}, "truncate is 1"),
        ({"rope_scaling": {}, "rope_parameters": {"rope_theta": 1e6}}, "contradict each other"),
        ({"rope_theta": 1}, "rope_theta is 1.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": [1]}, "rope_parameters is not an object"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "by layer type"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ],
)
def test_json_refusals_name_file_and_reason(path, change, reason):
    with pytest.raises(ModelFileError) as caught:
        config_from_json(path, {**JSON, **change})
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


MISTRAL = {**JSON, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 100}
MINISTRAL = {**MISTRAL, "model_type": "ministral"}
HYBRID = {"layer_types": ["full_attention", "sliding_attention"]}


@pytest.mark.parametrize(
    ("values", "windows"),
    [
        ({**JSON, "sliding_window": 100}, (None, None)),  # Llama knows no window: not its field
        (MISTRAL, (100, 100)),
        ({**MISTRAL, "sliding_window": None}, (None, None)),
        ({**MISTRAL, "sliding_window": 511}, (511, 511)),
        ({**MISTRAL, "sliding_window": 512}, (None, None)),  # as long as the longest sequence
        (MINISTRAL, (100, 100)),
        ({**MINISTRAL, "sliding_window": None}, (None, None)),
        ({**MINISTRAL, **HYBRID}, (None, 100)),
        ({**MINISTRAL, "layer_types": ["full_attention"] * 2}, (None, None)),
    ],
)
def test_windows_of_the_layers(path, values, windows):
    assert config_from_json(path, values).layer_windows == windows


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0"),
        ({**MISTRAL, "sliding_window": "100"}, "sliding_window is '100'"),
        ({**MISTRAL, "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({**MISTRAL, **HYBRID}, "layer_types are not supported for 'mistral'"),
        ({**MINISTRAL, "layer_types": ["full_attention"]}, "not a list of 2 names"),
        ({**MINISTRAL, "layer_types": "full_attention"}, "not a list of 2 names"),
        ({**MINISTRAL, "layer_types": ["full_attention", "linear"]}, "'linear' is not supported"),
        ({**MINISTRAL, "layer_types": ["full_attention", ["x"]]}, "is not supported"),
        ({**MINISTRAL, **HYBRID, "sliding_window": None}, "'sliding_attention'"),
    ],
)
def test_windows_we_cannot_compute_are_refused(path, values, reason):
    with pytest.raises(ModelFileError, match=reason):
        config_from_json(path, values)


@pytest.mark.parametrize("name", ["sliding_window", "num_key_value_heads"])
@pytest.mark.parametrize("values", [MISTRAL, MINISTRAL])
def test_what_has_another_default_in_a_windowed_model_must_be_stated(path, values, name):
    missing = {key: value for key, value in values.items() if key != name}
    with pytest.raises(ModelFileError, match=f"{name} is not stated"):
        config_from_json(path, missing)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_broken_config_file_is_one_clear_error(path, content):
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="JSON"):
        read_json(path)


def test_a_missing_config_file_is_one_clear_error(path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_json(path)


def test_a_good_config_file(path):
    path.write_text(json.dumps(JSON))
    assert read_json(path) == JSON
