"""Reads a .safetensors file: its header, checked strictly, and its tensors' bytes; no torch needed.

Format: https://github.com/huggingface/safetensors#format. Eight bytes of length, that much JSON,
then the tensors' bytes, each of them in exactly one tensor. The file is untrusted: whatever is odd
raises `ModelFileError`, before anything is allocated for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from engine.model.tensors import StoredTensor
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.ggml import GgmlType
from engine.protocol.text.json_file import parse_json
from engine.protocol.text.model_file import ModelFile

_LENGTH_BYTES: Final = 8
_MAX_HEADER: Final = 16 << 20  # a tensor's entry is about 100 bytes long
_MAX_DIMENSIONS: Final = 8
_MAX_SIZE: Final = 1 << 40
_ENTRY: Final = frozenset({"dtype", "shape", "data_offsets"})
_METADATA: Final = "__metadata__"
_BITS: Final = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_SERVED: Final = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}


@dataclass(frozen=True, slots=True)
class SafetensorsInfo:
    """One tensor: `dtype` as the format spells it, `offset` absolute in the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """An open file; `tensors` by name."""

    def __init__(self, path: Path) -> None:
        """Open and check `path`; raises ModelFileError."""
        self._file = ModelFile(path)
        header, start = _header(self._file)
        entries = {
            name: _info(path, name, entry, start)
            for name, entry in header.items()
            if name != _METADATA
        }
        _check_whole(self._file, entries, start)
        self.tensors: Mapping[str, SafetensorsInfo] = MappingProxyType(entries)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._file.path

    def tensor(self, name: str) -> StoredTensor:
        """A tensor; raises ModelFileError when absent or of an unserved type."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(self.path, f"tensor {name!r} is missing")
        kind = _SERVED.get(info.dtype)
        if kind is None:
            raise ModelFileError(
                self.path, f"tensor {name!r} is of type {info.dtype}, which is not supported"
            )
        return StoredTensor(self._file, name, info.shape, kind, info.offset)

    def sha256(self) -> bytes:
        """The digest of the whole file; raises ModelFileError."""
        return self._file.sha256()


def _error(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(path, f"is not a readable safetensors file: {reason}")


def _header(file: ModelFile) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors' bytes begin."""
    if file.size < _LENGTH_BYTES:
        raise _error(file.path, "it is shorter than a header")
    length = int.from_bytes(file.read(0, _LENGTH_BYTES), "little")
    if length > min(file.size - _LENGTH_BYTES, _MAX_HEADER):
        raise _error(file.path, f"its header claims {length} bytes")
    data = file.read(_LENGTH_BYTES, length)
    try:
        header = parse_json(data, unique_names=True)
    except ValueError as error:
        raise _error(file.path, f"its header {error}") from error
    if not data.startswith(b"{"):  # not even white space, or it would be some other format
        raise _error(file.path, "its header does not begin with a brace")
    return header, _LENGTH_BYTES + length


def _info(path: Path, name: str, entry: Any, start: int) -> SafetensorsInfo:
    if not isinstance(entry, dict) or entry.keys() != _ENTRY:
        raise _error(path, f"tensor {name!r} is not described by type, shape and offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    bits = _BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise _error(path, f"tensor {name!r} is of the unknown type {str(dtype)[:40]!r}")
    if not _sizes(shape) or len(shape) > _MAX_DIMENSIONS or prod(shape) > _MAX_SIZE:
        raise _error(path, f"tensor {name!r} has an impossible shape")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _error(path, f"tensor {name!r} has impossible offsets")
    nbytes = offsets[1] - offsets[0]
    if nbytes * 8 != prod(shape) * bits:
        raise _error(path, f"tensor {name!r} has {nbytes} bytes, which its shape does not need")
    return SafetensorsInfo(dtype, tuple(shape), start + offsets[0], nbytes)


def _sizes(values: Any) -> bool:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= _MAX_SIZE for value in values
    )


def _check_whole(file: ModelFile, entries: Mapping[str, SafetensorsInfo], start: int) -> None:
    """Every byte after the header belongs to exactly one tensor."""
    at = start
    for name, info in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if info.offset != at:
            raise _error(file.path, f"tensor {name!r} does not begin where another ends")
        at += info.nbytes
    if at != file.size:
        raise _error(file.path, f"it is {file.size} bytes long, its tensors end at {at}")
