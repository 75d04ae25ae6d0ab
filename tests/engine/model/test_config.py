import json
import math

import pytest
from transformers import Gemma3TextConfig

from engine.model import config_gguf, config_json
from engine.model.config_gguf import config_from_gguf
from engine.model.config_json import config_from_json, has_tied_head
from engine.model.families import architectures, model_types
from engine.model.rope import Linear, Rope
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


@pytest.mark.parametrize(
    "name", ["sliding_window", "num_key_value_heads", "max_position_embeddings"]
)
@pytest.mark.parametrize("values", [MISTRAL, MINISTRAL])
def test_what_has_another_default_in_a_windowed_model_must_be_stated(path, values, name):
    missing = {key: value for key, value in values.items() if key != name}
    with pytest.raises(ModelFileError, match=f"{name} is not stated"):
        config_from_json(path, missing)


QWEN2 = {**JSON, "model_type": "qwen2", "num_key_value_heads": 2}
QWEN3 = {**QWEN2, "model_type": "qwen3", "head_dim": 32}
SLIDING = {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 1}


def test_qwen2(path):
    config = config_from_json(path, {**QWEN2, "sliding_window": 131072, "max_window_layers": 28})
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (True, False, False)
    assert config.layer_windows == (None, None)
    assert config_from_json(path, {**QWEN2, **SLIDING}).layer_windows == (None, 100)


def test_qwen3(path):
    config = config_from_json(path, QWEN3)
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (False, False, True)
    assert (config.head_dim, config.attention_scale) == (32, 32**-0.5)
    biased = config_from_json(path, {**QWEN3, "attention_bias": True})
    assert biased.qkv_bias
    assert biased.o_bias
    layers = {"layer_types": ["sliding_attention", "full_attention"]}
    assert config_from_json(path, {**QWEN3, **SLIDING, **layers}).layer_windows == (100, None)


# As Gemma 3 1B was published, but smaller; and as transformers 5 writes the same.
GEMMA = {
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 7,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 25,
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window": 100,
    "sliding_window_pattern": 3,
    "vocab_size": 300,
}
GEMMA_5 = {key: value for key, value in GEMMA.items() if "rope" not in key} | {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2
    + ["sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


@pytest.mark.parametrize("values", [GEMMA, GEMMA_5, {"model_type": "gemma3", "text_config": GEMMA}])
def test_gemma3(path, values):
    config = config_from_json(path, values)
    assert config.layer_windows == (100, 100, None, 100, 100, None, 100)
    assert config.ropes == (Rope(16, 1e4), Rope(16, 1e6, Linear(8.0)))
    assert config.layer_ropes == (0, 0, 1, 0, 0, 1, 0)
    assert (config.qk_norm, config.post_norms, config.activation) == (True, True, "gelu_tanh")
    assert (config.embedding_scale, config.attention_scale) == (8.0, 0.2)
    assert has_tied_head(path, values)
    assert not has_tied_head(path, {**values, "tie_word_embeddings": False})


def test_gemma3_of_which_only_some_sizes_are_stated_has_those_of_its_class(path):
    """As Gemma 3 4B was published."""
    values = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    theirs = Gemma3TextConfig(**values)
    ours = config_from_json(path, {"model_type": "gemma3", "text_config": values})
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim) == (
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
        theirs.head_dim,
    )
    assert (ours.vocab_size, ours.context_length) == (262_208, theirs.max_position_embeddings)
    assert ours.layer_windows == tuple(
        1024 if kind == "sliding_attention" else None for kind in theirs.layer_types
    )
    assert ours.attention_scale == theirs.query_pre_attn_scalar**-0.5


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({**GEMMA, "final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({**GEMMA, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({**GEMMA, "hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        ({**GEMMA, "rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({**GEMMA_5, "rope_parameters": {"rope_theta": 1e6}}, "not an object for each layer type"),
        ({"model_type": "gemma3"}, "text_config is not stated"),
        ({"model_type": "gemma3", "text_config": 1}, "text_config is not an object"),
        ({**QWEN2, "use_mrope": True}, "use_mrope"),
        ({**QWEN3, **SLIDING, "sliding_window": None}, "sliding_window is None"),
        ({**QWEN3, **SLIDING, "max_window_layers": "1"}, "max_window_layers is '1'"),
    ],
)
def test_families_refuse_what_they_cannot_compute(path, values, reason):
    with pytest.raises(ModelFileError, match=reason):
        config_from_json(path, values)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"num_local_experts": 8}, "(mixture of experts); supported: 'llama', 'mistral'"),
        ({"attn_logit_softcapping": 50.0}, "(attn_logit_softcapping)"),
        ({"vision_config": {}}, "(vision_config)"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "(its own code, auto_map, is not run)"),
        ({}, "'other' is not supported; supported: 'llama'"),
    ],
)
def test_an_unknown_model_is_told_why(path, extra, reason):
    with pytest.raises(ModelFileError) as caught:
        config_from_json(path, {**JSON, "model_type": "other", **extra})
    assert reason in str(caught.value)


def as_architecture(name, **changes):
    own = {key.replace("llama.", f"{name}."): value for key, value in METADATA.items()}
    changes = {f"{name}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return {**own, "general.architecture": name, **changes}


def test_gguf_windows(path):
    mistral = as_architecture("llama", attention__sliding_window=4096)
    assert config_from_gguf(path, mistral, SHAPES).layer_windows == (4096,) * 30
    # One that no sequence outgrows says nothing; any other does not say which layers it is for.
    harmless = as_architecture("qwen2", attention__sliding_window=8192)
    assert config_from_gguf(path, harmless, SHAPES).layer_windows == (None,) * 30
    with pytest.raises(ModelFileError, match="sliding_window = 4096"):
        config_from_gguf(path, as_architecture("qwen3", attention__sliding_window=4096), SHAPES)


def test_gguf_gemma3(path):
    gemma = as_architecture("gemma3", attention__sliding_window=512, attention__key_length=64)
    config = config_from_gguf(path, gemma, SHAPES)
    assert config.layer_windows == ((512,) * 5 + (None,)) * 5
    assert config.ropes == (Rope(64, 1e4), Rope(64, 1e5))
    assert config.attention_scale == 64**-0.5
    listed = {**gemma, "gemma3.attention.sliding_window_pattern": [True, False] * 15}
    assert config_from_gguf(path, listed, SHAPES).layer_windows == (512, None) * 15
    every_third = {**gemma, "gemma3.attention.sliding_window_pattern": 3}
    assert config_from_gguf(path, every_third, SHAPES).layer_windows == (512, 512, None) * 10
    for wrong in ([True] * 29, [1] * 30, 0, "x"):
        pattern = {**gemma, "gemma3.attention.sliding_window_pattern": wrong}
        with pytest.raises(ModelFileError, match="sliding_window_pattern"):
            config_from_gguf(path, pattern, SHAPES)
    # 27B alone has this many layers.
    large = {**gemma, "gemma3.block_count": 62, "gemma3.attention.key_length": 32}
    large["gemma3.rope.dimension_count"] = 32
    assert config_from_gguf(path, large, SHAPES).attention_scale == (576 // 9) ** -0.5


@pytest.mark.parametrize(
    ("changes", "divisors", "reason"),
    [
        ({}, (1.0,) * 31, "not of 32 numbers"),
        ({}, (1.0,) * 31 + (0.0,), "not positive"),
        ({"llama.rope.scaling.factor": 2.0}, (1.0,) * 32, "beside another scaling"),
    ],
)
def test_gguf_rope_divisors_that_do_not_fit_are_refused(path, changes, divisors, reason):
    with pytest.raises(ModelFileError, match=reason):
        config_from_gguf(path, {**METADATA, **changes}, SHAPES, divisors)


def test_the_table_names_what_is_read():
    assert set(model_types()) == set(config_json._READERS)
    assert set(architectures()) == set(config_gguf._READERS)


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
