"""Dequantisation against the gguf package's, bit for bit."""

import gguf
import numpy as np
import pytest
import torch

from engine.model import dequant
from engine.protocol.text.ggml import GgmlType

SUPPORTED = [kind for kind in GgmlType if kind.supported]


def random_blocks(kind, num_blocks, seed=0):
    """Any bytes are a legal block, except that halves and floats are kept finite."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_blocks, kind.block_bytes), dtype=np.uint8)
    if kind is GgmlType.F32:
        return rng.standard_normal((num_blocks, 1), np.float32).view(np.uint8)
    if kind is GgmlType.F16:
        return rng.standard_normal((num_blocks, 1), np.float32).astype(np.float16).view(np.uint8)
    if kind is GgmlType.BF16:
        return (
            (rng.standard_normal((num_blocks, 1), np.float32).view(np.uint32) >> 16)
            .astype(np.uint16)
            .view(np.uint8)
        )
    for at in (0, 2) if kind is GgmlType.Q4_1 else (0,):
        halves = rng.standard_normal((num_blocks, 1), np.float32).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8)
    return blocks


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("chunk", [1 << 18, 96])
def test_equals_gguf_bit_for_bit(kind, chunk, monkeypatch):
    monkeypatch.setattr(dequant, "_CHUNK_ELEMENTS", chunk)
    blocks = random_blocks(kind, 70)
    shape = (5, 14 * kind.block_elements)
    got = dequant.dequantize(memoryview(blocks.tobytes()), kind, shape)
    expected = gguf.quants.dequantize(
        blocks.reshape(5, -1), gguf.GGMLQuantizationType[kind.name]
    ).reshape(shape)
    assert got.dtype == torch.float32
    assert np.array_equal(got.numpy().view(np.uint32), expected.astype(np.float32).view(np.uint32))


def test_every_type_the_reader_calls_supported_has_a_decoder():
    assert set(dequant._DECODERS) == set(SUPPORTED)


def test_the_default_models_tensors_equal_ggufs(smollm2):
    from engine.protocol.text.gguf import GgufFile

    with GgufFile.open(smollm2) as file:
        for name in ("blk.3.ffn_down.weight", "blk.29.attn_k.weight", "output_norm.weight"):
            info = file.tensors[name]
            data = file.tensor_data(name)
            got = dequant.dequantize(data, info.type, info.shape)
            expected = gguf.quants.dequantize(
                np.frombuffer(data, np.uint8).reshape(info.shape[0], -1)
                if info.type is not GgmlType.F32
                else np.frombuffer(data, np.float32),
                gguf.GGMLQuantizationType[info.type.name],
            )
            assert np.array_equal(got.numpy(), expected.reshape(info.shape))
            del data
