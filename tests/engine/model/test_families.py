"""Every family and variant against transformers on the same weights in fp32, prompt and decode.

Through the engine core, with paging and chunks: blocks of 8 tokens, steps of 24, windows of 12, so
that each straddles the others. Both decoders: the one that is served, cold and with its prefixes
cached, and the plain one, operation by operation, on fewer prompts, as it is slow. Each feature has
a control: the same weights computed without it are far off.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

from engine.core.engine_core import CoreConfig
from engine.model.load import load_model, open_weights
from engine.model.rope import Rope, Unscaled
from engine.model.torch_decoder import TorchDecoder
from engine.runner.decoder_runner import DecoderRunner
from kernels.reference import ReferenceKernels
from tests.support.equivalence import Comparison, forced_case, worst
from tests.support.tiny_models import FAMILIES, round_weights, tiny, write_gguf

TOLERANCE = 1e-4  # 1e-3 is what must hold; the differences seen are about 1e-5
FAR = 100 * TOLERANCE
BLOCK = 8
LENGTHS = [1, 7, 24, 41, 60]  # and OUTPUT tokens after each
OUTPUT = 10


def rope(kind, theta=10000.0, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


LLAMA3 = rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN = rope("yarn", factor=8.0, original_max_position_embeddings=64)
SCALED_GEMMA = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 100000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
}
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
HYBRID = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 12}


def heads(per_group, groups=1):
    """So many query heads to a key/value head."""
    count = per_group * groups
    return {
        "num_attention_heads": count,
        "num_key_value_heads": groups,
        "hidden_size": 8 * count if count > 4 else 64,
        "head_dim": 12,
    }


VARIANTS = {
    "llama": ("llama", {}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, other rope base": ("llama", rope("default", 500.0)),
    "llama, linear rope": ("llama", rope("linear", factor=4.0)),
    "llama, llama3 rope": ("llama", LLAMA3),
    "llama, yarn rope": ("llama", YARN),
    "llama, yarn with a scale": (
        "llama",
        rope("yarn", factor=4.0, attention_factor=1.4, beta_fast=8.0, truncate=False),
    ),
    "llama, yarn with mscales": ("llama", rope("yarn", factor=4.0, mscale=0.7, mscale_all_dim=2.0)),
    **{f"llama, {ratio} heads to one": ("llama", heads(ratio, 2)) for ratio in range(1, 5)},
    **{f"llama, {ratio} heads to one": ("llama", heads(ratio)) for ratio in range(5, 10)},
    "mistral": ("mistral", {}),
    "ministral": ("ministral", {}),
    "ministral, hybrid": ("ministral", HYBRID),
    "qwen2": ("qwen2", {}),
    "qwen2, tied head": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows above": ("qwen2", QWEN_WINDOWS),
    "qwen2, yarn rope": ("qwen2", YARN),
    "qwen3": ("qwen3", {}),
    "qwen3, tied head": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
    "qwen3, hybrid": ("qwen3", {**QWEN_WINDOWS, **HYBRID}),
    "gemma3": ("gemma3_text", {}),
    "gemma3, tied head": ("gemma3_text", {"tie_word_embeddings": True}),
    "gemma3, scaled rope": ("gemma3_text", SCALED_GEMMA),
    "gemma3, biases": ("gemma3_text", {"attention_bias": True}),
}


def plain(path):
    with torch.inference_mode():
        return TorchDecoder(open_weights(path), ReferenceKernels())


DECODERS = ["plain", "served"]


def sequences(lengths=LENGTHS):
    rng = np.random.default_rng(3)
    return [rng.integers(0, 300, length + OUTPUT).tolist() for length in lengths]


def cases_of(reference, lengths=LENGTHS):
    return [forced_case(reference, tokens, len(tokens) - OUTPUT) for tokens in sequences(lengths)]


def compare(model, cases, runs=1):
    """In one engine; from the second run on prefixes are cached."""
    runner = DecoderRunner(model, 256, BLOCK, 8, 24)
    config = CoreConfig(
        num_blocks=256,
        max_model_len=model.config.context_length,
        model_digest=model.digest,
        block_size=BLOCK,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        windows=runner.windows,
    )
    comparison = Comparison(runner, config)
    difference = worst([comparison.run(cases) for _ in range(runs)])
    assert (comparison.core.stats().prefix_hit_tokens > 0) == (runs > 1)
    return difference


def compare_by(decoder, path, cases):
    if decoder == "plain":
        return compare(plain(path), cases[1::2])
    return compare(load_model(path, threads=2), cases, runs=2)


def assert_equal(difference):
    assert difference.largest_logit_difference <= TOLERANCE, difference
    assert difference.mismatches_beyond_gap == 0, difference


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Of each variant its folder, in shards, and the reference's cases; made when first asked."""
    made = {}

    def make(name):
        if name not in made:
            family, overrides = VARIANTS[name]
            reference = tiny(family, **overrides)
            folder = tmp_path_factory.mktemp("family")
            reference.save_pretrained(folder, max_shard_size="150KB")
            made[name] = folder, cases_of(reference)
        return made[name]

    return make


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_family_from_safetensors(saved, name, decoder):
    folder, cases = saved(name)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert min(case.logits.std() for case in cases) > 0.5  # so that the tolerance says something
    assert_equal(compare_by(decoder, folder, cases))


GEMMA_AS_GGUF = {
    "num_hidden_layers": 7,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
}
# Quantised rows are whole blocks of 32 elements.
WIDE = {"num_attention_heads": 8, "hidden_size": 96}
FILES = {
    "llama": ("llama", {}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, linear rope": ("llama", rope("linear", factor=4.0)),
    "llama, llama3 rope": ("llama", LLAMA3),
    "llama, yarn rope": ("llama", YARN),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2, yarn rope": ("qwen2", YARN),
    "qwen3": ("qwen3", {}),
    "gemma3": ("gemma3_text", GEMMA_AS_GGUF),
    "gemma3, scaled rope": ("gemma3_text", {**GEMMA_AS_GGUF, **SCALED_GEMMA}),
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", FILES)
def test_a_family_from_gguf(name, decoder, tmp_path):
    family, overrides = FILES[name]
    reference = tiny(family, **overrides)
    write_gguf(reference, tmp_path / "model.gguf")
    assert_equal(compare_by(decoder, tmp_path / "model.gguf", cases_of(reference)))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_0"])
def test_a_family_from_quantised_gguf(name, decoder, quantization, tmp_path):
    family, overrides = FILES[name]
    reference = tiny(family, **{**overrides, **WIDE})
    round_weights(reference, quantization)
    write_gguf(reference, tmp_path / "model.gguf", quantization)
    assert_equal(compare_by(decoder, tmp_path / "model.gguf", cases_of(reference)))


class Altered:
    """Weights of a decoder that is said to be another."""

    def __init__(self, weights, **changes):
        self.config = dataclasses.replace(weights.config, **changes)
        self.tied = weights.tied
        self.digest = weights.digest
        self.matrix = weights.matrix
        self.vector = weights.vector


def without(**changes):
    return lambda weights: Altered(weights, **changes)


def unscaled(weights):
    ropes = tuple(dataclasses.replace(rope, scaling=Unscaled()) for rope in weights.config.ropes)
    return Altered(weights, ropes=ropes)


def without_sharper_scores(weights):
    (rope,) = weights.config.ropes
    scaling = dataclasses.replace(rope.scaling, scale=1.0)
    return Altered(weights, ropes=(dataclasses.replace(rope, scaling=scaling),))


def one_rope(which):
    def alter(weights):
        return Altered(weights, layer_ropes=(which,) * weights.config.num_layers)

    return alter


def without_windows(weights):
    return Altered(weights, layer_windows=(None,) * weights.config.num_layers)


def usual_scores(weights):
    return Altered(weights, attention_scale=weights.config.head_dim**-0.5)


def other_base(weights):
    return Altered(weights, ropes=(Rope(weights.config.head_dim, 10000.0),))


def as_if_tied(weights):
    altered = Altered(weights)
    altered.tied = True
    return altered


def other_vectors(change, *ends):
    """The vectors of such names changed."""

    def alter(weights):
        altered = Altered(weights)

        def vector(name, length):
            values = weights.vector(name, length)
            return change(values) if name.endswith(ends) else values

        altered.vector = vector
        return altered

    return alter


def wrongly_grouped(weights):
    """Query heads given to key heads in turn, instead of group by group."""
    altered = Altered(weights)

    def matrix(name, shape):
        found = weights.matrix(name, shape)
        if name.endswith(".q"):
            config = weights.config
            rows = np.arange(shape[0]).reshape(config.num_kv_heads, -1, config.head_dim)
            return dataclasses.replace(found, values=found.values[rows.swapaxes(0, 1).reshape(-1)])
        return found

    altered.matrix = matrix
    return altered


CONTROLS = [
    ("llama", as_if_tied),
    ("llama, other rope base", other_base),
    ("llama, biases", without(qkv_bias=False)),
    ("llama, biases", without(o_bias=False)),
    ("llama, linear rope", unscaled),
    ("llama, llama3 rope", unscaled),
    ("llama, yarn rope", unscaled),
    ("llama, yarn rope", without_sharper_scores),
    ("llama, yarn with a scale", without_sharper_scores),
    ("llama, yarn with mscales", without_sharper_scores),
    ("llama, 3 heads to one", wrongly_grouped),
    ("mistral", without_windows),
    ("ministral, hybrid", without_windows),
    ("qwen2", without(qkv_bias=False)),
    *[("qwen2", other_vectors(np.zeros_like, f".{part}_bias")) for part in "qv"],
    ("qwen2, windows above", without_windows),
    ("qwen3", without(qk_norm=False)),
    *[("qwen3", other_vectors(np.ones_like, f".{part}_norm")) for part in "qk"],
    ("qwen3, hybrid", without_windows),
    ("gemma3", without(post_norms=False)),
    ("gemma3", without(activation="silu")),
    ("gemma3", without(embedding_scale=1.0)),
    ("gemma3", usual_scores),
    ("gemma3", one_rope(0)),
    ("gemma3", one_rope(1)),
    ("gemma3", without_windows),
    *[
        ("gemma3", other_vectors(lambda values: values - 1, end))
        for end in ("attention_norm", "mlp_norm", ".q_norm", ".k_norm", "norm")
    ],
    ("gemma3, scaled rope", unscaled),
]


@pytest.mark.parametrize(("name", "alter"), CONTROLS)
@torch.inference_mode()
def test_a_feature_left_out_is_far_off(saved, name, alter):
    """The control."""
    folder, cases = saved(name)
    model = TorchDecoder(alter(open_weights(folder)), ReferenceKernels())
    assert compare(model, cases[-1:]).largest_logit_difference > FAR


def test_gemma3_nested_beside_a_vision_model_that_is_not_there(saved, tmp_path):
    """Both spellings of where its language model lies."""
    from safetensors.torch import load_file, save_file

    folder, cases = saved("gemma3, tied head")
    tensors = {}
    for shard in folder.glob("*.safetensors"):
        tensors |= load_file(shard)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": config})
    )
    for prefix in ("model.language_model.", "language_model.model."):
        nested = {prefix + name.removeprefix("model."): t for name, t in tensors.items()}
        save_file(nested, tmp_path / "model.safetensors")
        assert_equal(compare(load_model(tmp_path, threads=2), cases[-1:]))


def test_every_family_is_here():
    assert {family for family, _ in VARIANTS.values()} == set(FAMILIES)
