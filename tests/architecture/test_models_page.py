"""docs/models.md says what the tables in the code say."""

import re
from dataclasses import replace
from math import prod

import pytest

from engine.model.config import ModelConfig
from engine.model.families import REFUSED, ROPE_TYPES, SUPPORTED
from engine.model.inspect import PROGRAM_BYTES, Inspection, packed_bytes
from engine.model.names import tensor_shapes
from engine.model.store import DEFAULT_MODEL
from engine.protocol.text.ggml import GgmlType
from engine.settings import CPU_KV_MEMORY, EngineSettings
from tests.architecture.test_docs import ROOT

PAGE = (ROOT / "docs" / "models.md").read_text()
SETTINGS = EngineSettings()
SMALL = ModelConfig(
    layer_windows=(None,),
    hidden_size=1,
    intermediate_size=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=2,
    vocab_size=1,
    context_length=1,
    norm_eps=1e-5,
    ropes=(),
    layer_ropes=(),
    attention_scale=1.0,
)


def model(layers, hidden, inner, heads, kv_heads, head, vocabulary, **more):
    return replace(
        SMALL,
        layer_windows=(None,) * layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head,
        vocab_size=vocabulary,
        **more,
    )


# As their own config.json gives them, and whether the head is a matrix of its own.
MODELS = {
    "SmolLM2 135M": (model(30, 576, 1536, 9, 3, 64, 49_152), False),
    "Gemma 3 270M": (model(18, 640, 2048, 4, 1, 256, 262_144, post_norms=True), False),
    "Qwen2.5 0.5B": (model(24, 896, 4864, 14, 2, 64, 151_936, qkv_bias=True), False),
    "Qwen3 0.6B": (model(28, 1024, 3072, 16, 8, 128, 151_936, qk_norm=True), False),
    "Llama 3.2 1B": (model(16, 2048, 8192, 32, 8, 64, 128_256), False),
    "Mistral 7B v0.3": (model(32, 4096, 14_336, 32, 8, 128, 32_768), True),
    "Llama 3.1 8B": (model(32, 4096, 14_336, 32, 8, 128, 128_256), True),
}


def rows(heading):
    """The cells of a section's last table, below its header."""
    section = re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    lines = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return cells[cells.index(["---"] * len(cells[-1])) + 1 :]


def names(values):
    return ", ".join(f"`{value}`" for value in values)


def test_every_family_is_there_as_the_code_has_it():
    assert rows("Families") == [
        [one.name, one.models, names(one.model_types), names(one.architectures)]
        for one in SUPPORTED
    ]


def test_rope_types_and_refusals_are_there():
    assert f"types {names(ROPE_TYPES[:-1])} and `{ROPE_TYPES[-1]}`" in PAGE
    listed = PAGE.split("# What is refused\n", 1)[1]
    assert re.findall(r"^- (.+)$", listed, re.MULTILINE) == list(REFUSED)


def test_every_served_type_has_its_bytes():
    listed = {
        kind: float(number) for kinds, number in rows("GGUF types") for kind in kinds.split(", ")
    }
    assert listed == {kind.name: packed_bytes(kind) for kind in GgmlType if kind.supported}


def test_every_type_that_is_not_served_is_of_a_kind_that_is_named():
    for kind in GgmlType:
        integer = re.fullmatch(r"[IF]\d+", kind.name)
        if not kind.supported and not integer:
            assert kind.name.startswith(("IQ", "TQ", "MXFP4")) or f"{kind.name}" in PAGE


@pytest.mark.parametrize("row", rows("Memory"), ids=lambda row: row[0])
def test_the_memory_of_known_models_is_right(row):
    config, has_head = MODELS[row[0]]
    weights = sum(
        prod(shape)
        for name, shape in tensor_shapes(config).items()
        if len(shape) == 2 and (has_head or name != "head")
    )
    assert row[1] == f"{weights / 1e6:,.0f}"
    kinds = (GgmlType.Q4_0, GgmlType.Q4_K, GgmlType.Q8_0, GgmlType.BF16)
    assert row[2:6] == [f"{weights * packed_bytes(kind) / 1e9:.2f}" for kind in kinds]
    found = Inspection("", config, {}, 0)
    assert row[6] == f"{found.kv_bytes_per_token / 1e3:.0f}"


def test_every_known_model_has_its_row():
    assert [row[0] for row in rows("Memory")] == list(MODELS)


def test_the_rest_of_the_formula_is_right():
    assert f"{PROGRAM_BYTES / 1e9:.2f} GB for the program" in PAGE
    assert CPU_KV_MEMORY == 1 << 30
    assert "(1 GiB unless set)" in PAGE
    for name, size in (("SmolLM2 135M", 19), ("Llama 3.1 8B", 142)):
        found = Inspection("", MODELS[name][0], {}, 0)
        memory = found.memory(0, SETTINGS.max_num_batched_tokens, SETTINGS.max_num_seqs)
        assert round(memory.activations / 1e6) == size
        assert f"{size} MB for" in PAGE


def test_settings_and_the_default_model_are_named():
    named = set(re.findall(r"EVENHAND_ENGINE__([A-Z_]+)", PAGE))
    assert {name.lower() for name in named} <= set(EngineSettings.model_fields)
    for name in ("quantization", "device", "dtype", "kv_memory", "num_kv_blocks"):
        assert name.upper() in named
    for choice in ("activations-int8", "float32", "float16", "bfloat16", "auto"):
        assert choice in PAGE
    assert f"`{DEFAULT_MODEL}`" in PAGE
