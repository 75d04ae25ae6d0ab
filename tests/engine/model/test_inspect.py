import numpy as np
import pytest

from engine.model.dequant import decode
from engine.model.inspect import inspect, packed_bytes
from engine.model.load import load_model
from engine.model.native import NativeDecoder
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.ggml import GgmlType
from kernels.cpu.packed import pack

SERVED = [kind for kind in GgmlType if kind.supported]


@pytest.mark.parametrize("kind", SERVED, ids=lambda kind: kind.name)
def test_the_bytes_of_a_weight_are_those_it_is_packed_in(kind):
    rows, columns = 64, 512
    blocks = (rows, columns // kind.block_elements * kind.block_bytes)
    # Codes at random; the two bytes of every half are those of a small normal number.
    data = np.random.default_rng(1).integers(0, 0x3C, blocks, np.uint8)
    packed = pack(decode(kind, data), int8_activations=False)
    assert packed.nbytes == rows * columns * packed_bytes(kind)


def test_the_default_model_is_described(smollm2):
    found = inspect(smollm2)
    assert found.family == "Llama or Mistral"
    assert found.main_type == "Q4_1"
    assert set(found.types) == {"Q4_1", "Q8_0", "F32"}
    assert sum(found.types.values()) < smollm2.stat().st_size
    assert found.kv_bytes_per_token == 2 * 4 * 30 * 3 * 64
    assert found.page_bytes(16) == 16 * found.kv_bytes_per_token


def test_its_memory_is_what_the_loaded_weights_take(smollm2):
    decoder = load_model(smollm2, threads=1)
    assert isinstance(decoder, NativeDecoder)
    weights = decoder.weights
    matrices = [weights.embedding] + [
        getattr(layer, part)
        for layer in weights.layers
        for part in ("q", "k", "v", "o", "gate", "up", "down")
    ]
    vectors = 4 * 576 * (2 * 30 + 1)
    found = inspect(smollm2)
    assert found.weights == sum(matrix.nbytes for matrix in matrices) + vectors
    assert found.page_bytes(16) == decoder.page_bytes(16)
    assert found.memory(1 << 30, 512, 16).total > found.weights + (1 << 30)


def test_what_cannot_be_loaded_is_refused(tmp_path, smollm2):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelFileError, match="mamba"):
        inspect(tmp_path)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="truncated"):
        inspect(cut)
