"""Tensors of a file: read when asked for, in the order asked for, never with infinities."""

import gguf
import numpy as np
import pytest

from engine.model.tensors import StoredTensor, gguf_tensor
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.ggml import GgmlType
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.model_file import ModelFile


@pytest.fixture
def stored(tmp_path):
    """A tensor over the given array's bytes, a few bytes into a file."""

    def build(array, kind, shape=None):
        path = tmp_path / "weights.bin"
        path.write_bytes(b"before" + array.tobytes() + b"after")
        return StoredTensor(ModelFile(path), "w", shape or array.shape, kind, len(b"before"))

    return build


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized(values, kind):
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.name])


@pytest.mark.parametrize(
    ("kind", "dtype"), [(GgmlType.F32, np.float32), (GgmlType.F16, np.float16)]
)
def test_floats_are_read_as_they_are(stored, kind, dtype):
    values = floats(5, 8).astype(dtype)
    matrix = stored(values, kind).matrix()
    assert matrix.shape == (5, 8)
    assert np.array_equal(matrix.values, values)
    matrix.values[:] = 0  # the caller's own


def test_a_vector_is_fp32_whatever_it_was(stored):
    values = floats(8)
    assert np.array_equal(stored(values, GgmlType.F32).vector(), values)
    halves = stored(values.astype(np.float16), GgmlType.F16).vector()
    assert halves.dtype == np.float32
    assert np.array_equal(halves, values.astype(np.float16))
    assert halves.flags.writeable


@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.Q4_1, GgmlType.Q8_0])
def test_rows_are_reordered_without_being_decoded(stored, kind):
    values = floats(6, 64)
    data = values if kind is GgmlType.F32 else quantized(values, kind)
    tensor = stored(data, kind, (6, 64))
    first, second = np.array([3, 1, 0, 5, 4, 2]), np.array([1, 0, 2, 5, 3, 4])
    whole = tensor.matrix().float32()
    assert np.array_equal(tensor.rows(first).matrix().float32(), whole[first])
    assert np.array_equal(tensor.rows(first).rows(second).matrix().float32(), whole[first][second])
    assert tensor.rows(first).shape == tensor.shape


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 40_000, 69_999])
@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.F16, GgmlType.BF16])
def test_values_that_are_not_finite_are_refused(stored, kind, place, bad):
    values = floats(7, 10_000)
    values.reshape(-1)[place] = bad
    if kind is GgmlType.F16:
        values = values.astype(np.float16)
    elif kind is GgmlType.BF16:
        values = (values.view(np.uint32) >> 16).astype(np.uint16)
    with pytest.raises(ModelFileError, match="'w' holds values that are not finite"):
        stored(values, kind).matrix()


@pytest.mark.parametrize("field", ["scale", "minimum"])
def test_scales_that_are_not_finite_are_refused(stored, field):
    data = quantized(floats(4, 64), GgmlType.Q4_1)
    data[2, 20 + (2 if field == "minimum" else 0) :][:2] = np.frombuffer(b"\x00\x7c", np.uint8)
    with pytest.raises(ModelFileError, match="not finite"):
        stored(data, GgmlType.Q4_1, (4, 64)).matrix()


def test_the_largest_numbers_are_finite(stored):
    values = np.full((1, 32), np.finfo(np.float32).max, np.float32)
    assert np.array_equal(stored(values, GgmlType.F32).matrix().values, values)


def test_a_file_that_became_shorter_is_one_clear_error(stored):
    tensor = stored(floats(64, 1024), GgmlType.F32)
    tensor.file.path.write_bytes(b"short")
    with pytest.raises(ModelFileError, match=r"weights\.bin: became shorter while it was read"):
        tensor.matrix()


def test_the_default_models_tensors_equal_ggufs(smollm2):
    with GgufFile.open(smollm2) as file:
        for name in ("blk.3.ffn_down.weight", "blk.29.attn_k.weight", "output_norm.weight"):
            tensor = gguf_tensor(file, name)
            data = tensor.data()
            expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[tensor.type.name])
            assert np.array_equal(tensor.matrix().float32(), expected)
