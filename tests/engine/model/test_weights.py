"""Weights from GGUF and safetensors: the same tensors, the same names, clear refusals."""

import json
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.model.load import load_model, open_weights
from engine.model.names import GGUF, tensor_shapes
from engine.protocol.text.errors import ModelFileError
from tests.support.tiny_models import tiny_llama, write_gguf


def read(weights, name, shape):
    """A tensor in fp32, whichever way it is to be asked for."""
    if len(shape) == 1:
        return weights.vector(name, *shape)
    return weights.matrix(name, shape).float32()


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_gguf_and_safetensors_give_the_same_tensors(model, folder, tmp_path):
    write_gguf(model, tmp_path / "tiny.gguf")
    ours, theirs = open_weights(tmp_path / "tiny.gguf"), open_weights(folder)
    assert ours.config == theirs.config
    assert not ours.tied
    assert not theirs.tied
    for name, shape in tensor_shapes(ours.config).items():
        assert np.array_equal(read(ours, name, shape), read(theirs, name, shape)), name


def test_tied_heads(tmp_path):
    tied = tiny_llama(tie_word_embeddings=True)
    tied.save_pretrained(tmp_path / "tied")
    write_gguf(tied, tmp_path / "tied.gguf")
    assert open_weights(tmp_path / "tied").tied
    assert open_weights(tmp_path / "tied.gguf").tied


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_exactly(folder, dtype):
    path = folder / "model.safetensors"
    save_file({name: t.to(dtype) for name, t in load_file(path).items()}, path)
    stored = load_file(path)["model.norm.weight"]
    got = open_weights(folder).vector("norm", 96)
    assert got.dtype == np.float32
    assert np.array_equal(got, stored.float().numpy())


def test_shards_are_found_by_their_index(model, folder, tmp_path):
    model.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    whole, sharded = open_weights(folder), open_weights(tmp_path / "sharded")
    for name, shape in tensor_shapes(whole.config).items():
        assert np.array_equal(read(whole, name, shape), read(sharded, name, shape))


def test_the_digest_follows_content(model, folder, tmp_path):
    before = open_weights(folder).digest()
    assert before == open_weights(folder).digest()
    model.save_pretrained(tmp_path / "copy")
    assert open_weights(tmp_path / "copy").digest() == before
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, folder / "model.safetensors")
    assert open_weights(folder).digest() != before


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "up_proj.weight' is missing"),
        (lambda t: t.pop("lm_head.weight"), "lm_head.weight' is missing"),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(120)}),
            "q_proj.bias' is not part of",
        ),
        (lambda t: t.update({"model.norm.weight": torch.zeros(97)}), "shape [97], expected [96]"),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(96, dtype=torch.float64)}),
            "of type F64",
        ),
    ],
)
def test_wrong_tensors_are_one_clear_error(folder, change, reason):
    change_tensors(folder, change)
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, threads=1)
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vision_tower.embeddings.weight", "has vision or audio weights"),
        ("model.layers.0.mlp.experts.0.up_proj.weight", "belongs to a mixture of experts"),
        ("model.layers.0.mlp.up_proj.lora_A", "is not part of a decoder"),
    ],
)
def test_weights_we_would_not_compute_with_are_refused(folder, name, reason):
    change_tensors(folder, lambda t: t.update({name: torch.zeros(10)}))
    with pytest.raises(ModelFileError, match=reason):
        open_weights(folder)


def test_rotary_constants_of_old_exports_are_ignored(folder):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_tensors(folder, lambda t: t.update({name: torch.zeros(10)}))
    load_model(folder, threads=1)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"weight_map": {"a": "../../etc/passwd"}}, "not the name of a file beside it"),
        ({"weight_map": {"a": "/etc/model.safetensors"}}, "not the name of a file beside it"),
        ({"weight_map": {"a": "gone.safetensors"}}, "which is missing"),
        ({"weight_map": {"a": 3}}, "weight_map"),
        ({"weight_map": [1]}, "weight_map"),
        ({}, "weight_map"),
    ],
)
def test_a_hostile_index_is_one_clear_error(folder, index, reason):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=reason):
        open_weights(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"12345678",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{",
    ],
)
def test_a_damaged_shard_is_one_clear_error(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match="not a readable safetensors file"):
        open_weights(folder)


def test_a_truncated_shard_is_one_clear_error(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="not a readable safetensors file"):
        open_weights(folder)


def test_a_folder_without_weights_is_one_clear_error(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match="has no model"):
        open_weights(folder)


def test_a_gguf_tensor_of_an_unserved_type_is_named(tmp_path):
    model = tiny_llama(head_dim=32)
    path = tmp_path / "tiny.gguf"
    write_gguf(model, path, quantization="MXFP4")
    with pytest.raises(ModelFileError, match="MXFP4"):
        load_model(path, threads=1)


def test_an_unknown_gguf_tensor_is_named(tmp_path, monkeypatch):
    from tests.support import tiny_models as writer

    monkeypatch.setitem(writer.GGUF_NAMES, "mlp.up_proj", "ffn_up_exps")
    write_gguf(tiny_llama(), tmp_path / "moe.gguf")
    with pytest.raises(ModelFileError, match="ffn_up_exps"):
        open_weights(tmp_path / "moe.gguf")


def test_another_dtype_is_refused(folder):
    with pytest.raises(ValueError, match="float16"):
        load_model(folder, dtype="float16")


def test_container_names():
    assert GGUF("layers.3.q") == "blk.3.attn_q.weight"
    assert GGUF("norm") == "output_norm.weight"
