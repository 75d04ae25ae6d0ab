"""Where a decoder's tensors come from: a GGUF file or safetensors shards, always given as fp32.

Tensors are asked for by one set of names (`layers.N.q`, ...) with the shape the configuration
implies; a missing tensor, another shape or an unserved type raises `ModelFileError`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors
import torch

from engine.model.config import ModelConfig
from engine.model.config_gguf import config_from_gguf
from engine.model.config_json import config_from_json
from engine.model.tensors import gguf_tensor
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.json_file import read_json

_SAFE_DTYPES = {"F32", "F16", "BF16"}

_GGUF_NAMES = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "attention_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
}
_SAFETENSORS_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
}
# Constants that old exports carry and that we compute ourselves.
_IGNORED_SUFFIX = "rotary_emb.inv_freq"


class Weights(Protocol):
    """The tensors of one decoder."""

    config: ModelConfig

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor in fp32, owned by the caller; raises ModelFileError."""
        ...

    @property
    def tied(self) -> bool:
        """Whether the embedding is also the output head."""
        ...

    def digest(self) -> bytes:
        """SHA-256 over everything that decides what the model computes."""
        ...


def local_name(names: Mapping[str, str], layer_prefix: str, name: str) -> str:
    """The container's name for `layers.N.x` or a top-level tensor."""
    if not name.startswith("layers."):
        return names[name]
    _, layer, part = name.split(".")
    return f"{layer_prefix}.{layer}.{names[part]}"


def expected_names(config: ModelConfig) -> Iterator[str]:
    """Every tensor a decoder of this configuration may have."""
    tops = ("embedding", "norm", "head")
    yield from tops
    for layer in range(config.num_layers):
        for part in _GGUF_NAMES:
            if part not in tops:
                yield f"layers.{layer}.{part}"


class GgufWeights:
    """Tensors of a GGUF file; query and key rows are put back into half-split rotary order."""

    def __init__(self, path: Path) -> None:
        self._file = GgufFile.open(path)
        shapes = {name: info.shape for name, info in self._file.tensors.items()}
        self.config = config_from_gguf(path, self._file.metadata, shapes)
        _refuse_unknown(
            path,
            self._file.tensors,
            {local_name(_GGUF_NAMES, "blk", name) for name in expected_names(self.config)},
        )

    @property
    def tied(self) -> bool:
        """See `Weights.tied`."""
        return _GGUF_NAMES["head"] not in self._file.tensors

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `Weights.tensor`."""
        stored = local_name(_GGUF_NAMES, "blk", name)
        found = gguf_tensor(self._file, stored)
        _check_shape(self._file.path, stored, found.shape, shape)
        tensor = torch.from_numpy(found.matrix().float32()).view(shape)
        if name.endswith((".q", ".k")):
            return _half_split(tensor, self.config.head_dim)
        return tensor

    def digest(self) -> bytes:
        """See `Weights.digest`: the file's own SHA-256."""
        return self._file.file.sha256()


def _half_split(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """GGUF pairs rotary elements as (2i, 2i + 1); reorder rows so that i pairs with i + D/2."""
    rows, width = weight.shape
    pairs = weight.view(rows // head_dim, head_dim // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width)


class SafetensorsWeights:
    """Tensors of a Hugging Face folder: config.json and one or more .safetensors files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config_path = folder / "config.json"
        values = read_json(config_path)
        self.config = config_from_json(config_path, values)
        self._tied = bool(values.get("tie_word_embeddings", False))
        self._shards: dict[str, Path] = {}
        for shard in _shard_paths(folder):
            self._add_shard(shard)
        _refuse_unknown(
            folder,
            (name for name in self._shards if not name.endswith(_IGNORED_SUFFIX)),
            {self._local(name) for name in expected_names(self.config)},
        )

    def _add_shard(self, path: Path) -> None:
        with _open_safetensors(path) as shard:
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                if name in self._shards:
                    raise ModelFileError(path, f"tensor {name!r} is in two files")
                self._shards[name] = path

    def _local(self, name: str) -> str:
        return local_name(_SAFETENSORS_NAMES, "model.layers", name)

    @property
    def tied(self) -> bool:
        """See `Weights.tied`."""
        return self._tied

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """See `Weights.tensor`."""
        stored = self._local(name)
        path = self._shards.get(stored)
        if path is None:
            raise ModelFileError(self._folder, f"tensor {stored!r} is missing")
        with _open_safetensors(path) as shard:
            view = shard.get_slice(stored)
            if view.get_dtype() not in _SAFE_DTYPES:
                kind = view.get_dtype()
                raise ModelFileError(
                    path, f"tensor {stored!r} is of type {kind}, which is not supported"
                )
            _check_shape(path, stored, tuple(view.get_shape()), shape)
            # Cloned: an fp32 tensor would otherwise be a view of the file.
            tensor: torch.Tensor = shard.get_tensor(stored)
            return tensor.to(torch.float32, copy=True)

    def digest(self) -> bytes:
        """See `Weights.digest`: the configuration and every shard in order of name."""
        total = hashlib.sha256()
        for path in [self._folder / "config.json", *sorted(set(self._shards.values()))]:
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        return total.digest()


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


def _open_safetensors(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="pt")
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelFileError(path, "is not a readable safetensors file") from error


def _check_shape(path: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ModelFileError(
            path, f"tensor {name!r} has shape {list(shape)}, expected {list(expected)}"
        )


def _refuse_unknown(path: Path, names: Any, known: set[str]) -> None:
    for name in names:
        if name not in known:
            raise ModelFileError(
                path, f"tensor {name!r} is not part of a Llama model this engine supports"
            )
