"""A decoder's tensors out of a GGUF file or a folder of safetensors, by one set of names.

They are asked for as in `engine.model.names`, with the shape that the configuration implies; a
missing tensor, another shape or an unserved type raises `ModelFileError`. Matrices stay in the form
in which they are stored; vectors are fp32.
"""

import hashlib
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine.model.config import ModelConfig
from engine.model.config_gguf import config_from_gguf
from engine.model.config_json import config_from_json, has_tied_head
from engine.model.fields import MAX_DIMENSION
from engine.model.names import GGUF, hugging_face, tensor_shapes
from engine.model.safetensors_file import SafetensorsFile
from engine.model.tensors import StoredTensor, gguf_tensor
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.json_file import read_json
from engine.protocol.text.model_file import ModelFile
from kernels.matrix import Matrix

Array = np.ndarray[Any, Any]

_ROPE_DIVISORS = "rope_freqs.weight"
# Constants that old exports carry and that we compute ourselves.
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
_SENSES = ("vision", "audio", "multi_modal", "embed_vision", "embed_audio")


class Weights(Protocol):
    """The tensors of one decoder. What is returned is the caller's own."""

    config: ModelConfig

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """A weight [rows, columns]; raises ModelFileError."""
        ...

    def vector(self, name: str, length: int) -> Array:
        """A bias or the factors of a norm, fp32 [length]; raises ModelFileError."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the embedding is also the output head."""
        ...

    def digest(self) -> bytes:
        """SHA-256 over everything that decides what the model computes."""
        ...


class GgufWeights:
    """Tensors of a GGUF file. Llama's query and key rows are put back into half-split order."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile.open(path)
        tensors, metadata = self._file.tensors, self._file.metadata
        shapes = {name: info.shape for name, info in tensors.items()}
        self.config = config_from_gguf(path, metadata, shapes, _rope_divisors(self._file))
        # The converter pairs rotary elements as (2i, 2i + 1) for this architecture alone.
        self._interleaved = metadata["general.architecture"] == "llama"
        known = {GGUF(name) for name in tensor_shapes(self.config)}
        _refuse_unknown(path, tensors, known | {_ROPE_DIVISORS})

    @property
    def tied(self) -> bool:
        """See `Weights.tied`."""
        return GGUF("head") not in self._file.tensors

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """See `Weights.matrix`."""
        found = self.stored(name, shape)
        if self._interleaved and name.endswith((".q", ".k")):
            found = found.rows(_half_split(shape[0], self.config.head_dim))
        return found.matrix()

    def vector(self, name: str, length: int) -> Array:
        """See `Weights.vector`."""
        values = self.stored(name, (length,)).vector()
        if self._interleaved and name.endswith((".q_bias", ".k_bias")):
            return values[_half_split(length, self.config.head_dim)]
        return values

    def digest(self) -> bytes:
        """See `Weights.digest`: the file's own SHA-256."""
        return self._file.file.sha256()

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """A tensor of this shape as the file has it, not read yet; raises ModelFileError."""
        found = gguf_tensor(self._file, GGUF(name))
        _check_shape(self._file.path, found.name, found.shape, shape)
        return found


def _rope_divisors(file: GgufFile) -> tuple[float, ...]:
    """One for each pair of a head's elements, where the file has them; raises ModelFileError."""
    if _ROPE_DIVISORS not in file.tensors:
        return ()
    found = gguf_tensor(file, _ROPE_DIVISORS)
    if prod(found.shape) > MAX_DIMENSION // 2:  # no head has so many; and lists take memory
        raise ModelFileError(file.path, f"tensor {_ROPE_DIVISORS!r} has too many numbers")
    return tuple(found.vector().tolist())


def _half_split(rows: int, head_dim: int) -> Array:
    """For each row of heads whose element i pairs with i + D/2, that where it pairs with 2i + 1."""
    interleaved = np.arange(rows).reshape(rows // head_dim, head_dim // 2, 2)
    return interleaved.swapaxes(1, 2).reshape(-1)


class SafetensorsWeights:
    """Tensors of a Hugging Face folder: config.json and one or more .safetensors files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config_path = folder / "config.json"
        values = read_json(config_path)
        self.config = config_from_json(config_path, values)
        self._tied = has_tied_head(config_path, values)
        self._files = [SafetensorsFile(path) for path in _shard_paths(folder)]
        self._shards: dict[str, SafetensorsFile] = {}
        for file in self._files:
            for name in file.tensors:
                if name in self._shards:
                    raise ModelFileError(file.path, f"tensor {name!r} is in two files")
                self._shards[name] = file
        self._stored_name = hugging_face(self.config, self._shards)
        _refuse_unknown(
            folder,
            (name for name in self._shards if not name.endswith(_IGNORED_SUFFIX)),
            {self._stored_name(name) for name in tensor_shapes(self.config)},
        )

    @property
    def tied(self) -> bool:
        """See `Weights.tied`."""
        return self._tied

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """See `Weights.matrix`."""
        return self.stored(name, shape).matrix()

    def vector(self, name: str, length: int) -> Array:
        """See `Weights.vector`. Gemma stores of a norm's factor what is above one."""
        values = self.stored(name, (length,)).vector()
        if self.config.post_norms and name.endswith("norm"):
            values += np.float32(1)
        return values

    def digest(self) -> bytes:
        """See `Weights.digest`: the configuration and every shard in order of name."""
        total = hashlib.sha256()
        with ModelFile(self._folder / "config.json") as config:
            total.update(config.sha256())
        for file in self._files:
            total.update(file.sha256())
        return total.digest()

    def stored(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """A tensor of this shape as the file has it, not read yet; raises ModelFileError."""
        stored = self._stored_name(name)
        file = self._shards.get(stored)
        if file is None:
            raise ModelFileError(self._folder, f"tensor {stored!r} is missing")
        found = file.tensor(stored)
        _check_shape(file.path, stored, found.shape, shape)
        return found


def _shard_paths(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        single = folder / "model.safetensors"
        if not single.is_file():
            raise ModelFileError(folder, "has no model.safetensors and no index of shards")
        return [single]
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelFileError(index, "has no weight_map of file names")
    shards = sorted(set(names.values()))
    for name in shards:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFileError(index, f"{name!r} is not the name of a file beside it")
        if not (folder / name).is_file():
            raise ModelFileError(index, f"names the shard {name!r}, which is missing")
    return [folder / name for name in shards]


def _check_shape(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelFileError(
            path, f"tensor {name!r} has shape {list(shape)}, expected {list(expected)}"
        )


def _refuse_unknown(path: Path, names: Iterable[str], known: set[str]) -> None:
    """Refuse weights that we would not compute with, and say what they are where it shows."""
    for name in names:
        if name in known:
            continue
        if any(sense in name for sense in _SENSES):
            raise ModelFileError(
                path, f"has vision or audio weights (tensor {name!r}); only text is supported"
            )
        if "exps." in name or ".experts." in name:
            raise ModelFileError(
                path, f"tensor {name!r} belongs to a mixture of experts, which is not supported"
            )
        raise ModelFileError(
            path, f"tensor {name!r} is not part of a decoder with this configuration"
        )
