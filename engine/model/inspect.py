"""What a model's files hold, without reading a tensor: family, types, and the memory it will need.

Names, shapes and types of all tensors are checked as loading checks them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from engine.model.config import ModelConfig
from engine.model.dequant import decode
from engine.model.families import SUPPORTED
from engine.model.names import tensor_shapes
from engine.model.page_groups import page_groups
from engine.model.tensors import StoredTensor
from engine.model.weights import GgufWeights, SafetensorsWeights
from engine.protocol.text.ggml import GgmlType
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.json_file import read_json
from kernels.matrix import FloatMatrix

_FP32: Final = 4
_HALF: Final = 2
PROGRAM_BYTES: Final = 220 * 10**6
"""The interpreter, its libraries, a usual vocabulary, and what loading needs for a moment."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that an engine on the CPU needs at most. Pages of the pool count once written."""

    weights: int
    kv_pool: int
    activations: int

    @property
    def total(self) -> int:
        """All of it, the program included."""
        return self.weights + self.kv_pool + self.activations + PROGRAM_BYTES


@dataclass(frozen=True, slots=True)
class Inspection:
    """A model that can be loaded: bytes of its file by type, bytes of its weights in memory."""

    family: str
    config: ModelConfig
    types: dict[str, int]
    weights: int

    @property
    def main_type(self) -> str:
        """The type that most of the file is of."""
        return max(self.types, key=lambda name: self.types[name])

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, in fp32; a window keeps fewer tokens."""
        config = self.config
        return 2 * _FP32 * config.num_layers * config.num_kv_heads * config.head_dim

    def page_bytes(self, block_size: int) -> int:
        """One block of the KV pool: the layers of one page group."""
        layers = page_groups(self.config.layer_windows).layers_per_group
        return block_size * self.kv_bytes_per_token // self.config.num_layers * layers

    def memory(self, kv_pool: int, batch_tokens: int, batch_rows: int) -> Memory:
        """What an engine with such a pool needs whose steps have so many tokens and rows."""
        config = self.config
        query, shared = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
        widths = 3 * config.hidden_size + 2 * (query + shared) + 3 * config.intermediate_size
        logits = batch_rows * config.vocab_size
        return Memory(self.weights, kv_pool, _FP32 * (batch_tokens * widths + logits))


def inspect(path: Path) -> Inspection:
    """Look at a GGUF file or a folder of safetensors; raises ModelFileError."""
    weights = SafetensorsWeights(path) if path.is_dir() else GgufWeights(path)
    types: Counter[str] = Counter()
    in_memory = 0
    for tensor in _tensors(weights):
        elements = prod(tensor.shape)
        types[tensor.type.name] += elements // tensor.type.block_elements * tensor.type.block_bytes
        each = _FP32 if len(tensor.shape) == 1 else packed_bytes(tensor.type)
        in_memory += round(elements * each)
    return Inspection(_family(path), weights.config, dict(types), in_memory)


def packed_bytes(kind: GgmlType) -> float:
    """Bytes in memory for each weight of a matrix of this type: its code and its share of scales.

    The scales of K-quants are products that no longer fit half precision.
    """
    sample = decode(kind, np.zeros((1, kind.block_bytes), np.uint8))
    if isinstance(sample, FloatMatrix):
        return sample.values.itemsize
    vectors = 1 if sample.minima is None else 2
    scale = _FP32 if kind.name.endswith("_K") else _HALF
    return sample.bits / 8 + vectors * scale / sample.block


def _tensors(weights: GgufWeights | SafetensorsWeights) -> Iterator[StoredTensor]:
    for name, shape in tensor_shapes(weights.config).items():
        if name != "head" or not weights.tied:
            yield weights.stored(name, shape)


def _family(path: Path) -> str:
    """By the name the files give; GGUF has one for several families."""
    if path.is_dir():
        stated = read_json(path / "config.json").get("model_type")
        names = [family.name for family in SUPPORTED if stated in family.model_types]
    else:
        with GgufFile.open(path) as file:
            stated = file.metadata.get("general.architecture")
        names = [family.name for family in SUPPORTED if stated in family.architectures]
    return " or ".join(names)
