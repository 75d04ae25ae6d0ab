"""Reads a GGUF container (version 2 or 3): its metadata and its tensor directory.

The file is untrusted: every count, length and offset is checked against the bytes that are there
before anything is allocated for it, so a hostile file costs no more memory than a small multiple of
its own metadata. Whatever is wrong raises `ModelFileError` with one sentence.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.ggml import GgmlType
from engine.protocol.text.model_file import ModelFile

MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 1 << 16
_MAX_DIMENSIONS: Final = 4
_MAX_ELEMENTS: Final = 1 << 40
_MAX_NAME: Final = (1 << 16) - 1
_MAX_STRING: Final = 1 << 24
_FIRST_READ: Final = 1 << 20
_MAX_ARRAY_ITEMS: Final = 1 << 22  # over all arrays; the largest vocabularies have 2**20

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final[Mapping[int, Any]] = {  # as `memoryview.cast` has them
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}
_MIN_PAIR_BYTES: Final = 8 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 4 + 8 + 4 + 8
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. `shape` is outermost first, as in numpy (GGUF stores it reversed).

    `offset` is absolute in the file; `nbytes` is what its type and shape need, and is all there.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open container; `file` gives the tensors' bytes."""

    file: ModelFile
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open and check `path`; raises ModelFileError."""
        file = ModelFile(path)
        try:
            metadata, tensors = _Reader(file).read()
        except BaseException:
            file.close()
            raise
        return cls(file, MappingProxyType(metadata), MappingProxyType(tensors))

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.file.path

    def find(self, name: str) -> TensorInfo:
        """A tensor's entry; raises ModelFileError when absent or of an unserved type."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(self.path, f"tensor {name!r} is missing")
        if not info.type.supported:
            raise ModelFileError(
                self.path, f"tensor {name!r} is of type {info.type.name}, which is not supported"
            )
        return info

    def close(self) -> None:
        """Let go of the file; metadata and directory stay readable."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    offset: int  # from the start of the data section


class _Reader:
    """A cursor over the bytes; each `_take` proves that they exist, and only then reads them."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._size = file.size
        self._data = b""  # the beginning of the file, as far as it was needed
        self._at = 0
        self._array_items = 0

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        """Header, metadata, tensor directory, in the file's order."""
        self._check_magic()
        self._check_version()
        num_tensors = self._count("tensors", _MIN_TENSOR_BYTES)
        num_pairs = self._count("metadata pairs", _MIN_PAIR_BYTES)
        metadata = self._metadata(num_pairs)
        alignment = self._alignment(metadata)
        directory = [self._tensor_entry() for _ in range(num_tensors)]
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for entry in directory:
            if entry.name in tensors:
                raise self._error(f"two tensors are named {entry.name!r}")
            tensors[entry.name] = self._place(entry, base, alignment)
        self._check_overlap(tensors)
        return metadata, tensors

    def _error(self, reason: str) -> ModelFileError:
        return ModelFileError(self._file.path, reason)

    def _take(self, length: int, what: str) -> int:
        """Advance over `length` bytes and return where they start."""
        start = self._at
        if length > self._size - start:
            raise self._error(f"is truncated or damaged: {what} at byte {start} runs past the end")
        self._at = start + length
        if self._at > len(self._data):
            self._read_to(self._at)
        return start

    def _read_to(self, end: int) -> None:
        """Have the bytes before `end`, which exist; twice as many each time, to copy few."""
        have = len(self._data)
        until = min(self._size, max(end, 2 * have, _FIRST_READ))
        self._data += self._file.read(have, until - have)

    def _u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self._data, self._take(4, what))[0]
        return value

    def _u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self._data, self._take(8, what))[0]
        return value

    def _check_magic(self) -> None:
        if self._size < len(MAGIC) or not self._starts_with_magic():
            raise self._error("is not a GGUF file (its first four bytes differ)")

    def _starts_with_magic(self) -> bool:
        start = self._take(len(MAGIC), "the magic")
        return self._data[start : self._at] == MAGIC

    def _check_version(self) -> None:
        version = self._u32("the version")
        if version in _VERSIONS:
            return
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise self._error("is a big-endian GGUF file, which is not supported")
        raise self._error(f"is GGUF version {version}; versions 2 and 3 are supported")

    def _count(self, what: str, min_bytes: int) -> int:
        count = self._u64(f"the number of {what}")
        if count > (self._size - self._at) // min_bytes:
            raise self._error(f"claims {count} {what}, more than its size can hold")
        return count

    def _text(self, what: str, limit: int) -> str:
        length = self._u64(what)
        if length > limit:
            raise self._error(f"{what} at byte {self._at} claims {length} bytes")
        start = self._take(length, what)
        try:
            return self._data[start : start + length].decode()
        except UnicodeDecodeError:
            raise self._error(f"{what} at byte {start} is not valid UTF-8") from None

    def _metadata(self, num_pairs: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._text("a metadata key", _MAX_NAME)
            if key in metadata:
                raise self._error(f"metadata key {key!r} appears twice")
            kind = self._u32(f"the type of {key!r}")
            metadata[key] = self._array(key) if kind == _ARRAY else self._value(kind, key)
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._text(f"the value of {key!r}", _MAX_STRING)
        return self._scalars(kind, 1, key)[0]

    def _array(self, key: str) -> list[Any]:
        kind = self._u32(f"the element type of {key!r}")
        count = self._u64(f"the length of {key!r}")
        self._array_items += count
        if self._array_items > _MAX_ARRAY_ITEMS:
            raise self._error(f"metadata array {key!r} claims {count} elements, which is too many")
        if kind != _STRING:
            return self._scalars(kind, count, key)
        if count > (self._size - self._at) // 8:
            raise self._error(f"is truncated or damaged: array {key!r} runs past the end")
        return self._strings(count, key)

    def _strings(self, count: int, key: str) -> list[str]:
        # A vocabulary has 10**5 strings, so this loop inlines `_text` and `_take` where it can.
        data, at = self._data, self._at
        unpack = _U64.unpack_from
        what = f"array {key!r}"
        texts = []
        try:
            for _ in range(count):
                start = at + 8
                if start > len(data):
                    data = self._go_to(at, 8, what)
                at = start + unpack(data, at)[0]
                if at > len(data):
                    data = self._go_to(start, at - start, what)
                texts.append(data[start:at].decode())
        except UnicodeDecodeError:
            message = f"element {len(texts)} of array {key!r} is not valid UTF-8"
            raise self._error(message) from None
        self._at = at
        return texts

    def _go_to(self, start: int, length: int, what: str) -> bytes:
        """Have `length` bytes from `start`, and return all that we have."""
        self._at = start
        self._take(length, what)
        return self._data

    def _scalars(self, kind: int, count: int, key: str) -> list[Any]:
        code = _SCALARS.get(kind)
        if code is None:
            raise self._error(f"metadata key {key!r} has the unknown type {kind}")
        length = count * struct.calcsize(f"<{code}")
        start = self._take(length, f"the value of {key!r}")
        values: list[Any] = memoryview(self._data)[start : start + length].cast(code).tolist()
        return [bool(value) for value in values] if kind == _BOOL else values

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or not 1 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._error(f"general.alignment is {alignment!r}, not a small power of two")
        return alignment

    def _tensor_entry(self) -> _Entry:
        name = self._text("a tensor name", _MAX_NAME)
        num_dimensions = self._u32(f"the rank of {name!r}")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"tensor {name!r} has {num_dimensions} dimensions; 1 to 4 are legal")
        stored = [self._u64(f"the shape of {name!r}") for _ in range(num_dimensions)]
        kind = self._u32(f"the type of {name!r}")
        offset = self._u64(f"the offset of {name!r}")
        try:
            return _Entry(name, tuple(reversed(stored)), GgmlType(kind), offset)
        except ValueError:
            raise self._error(f"tensor {name!r} has the unknown type {kind}") from None

    def _place(self, entry: _Entry, base: int, alignment: int) -> TensorInfo:
        name, shape, kind, offset = entry
        num_elements = prod(shape)
        if not 0 < num_elements <= _MAX_ELEMENTS:
            raise self._error(f"tensor {name!r} has the impossible shape {list(shape)}")
        if shape[-1] % kind.block_elements:
            raise self._error(
                f"tensor {name!r} has rows of {shape[-1]} elements,"
                f" not a multiple of the {kind.block_elements} in a {kind.name} block"
            )
        if offset % alignment:
            raise self._error(f"tensor {name!r} starts at a misaligned offset")
        nbytes = num_elements // kind.block_elements * kind.block_bytes
        if base + offset + nbytes > self._size:
            raise self._error(f"is truncated: tensor {name!r} runs past the end of the file")
        return TensorInfo(name, shape, kind, base + offset, nbytes)

    def _check_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        placed = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in pairwise(placed):
            if before.offset + before.nbytes > after.offset:
                raise self._error(f"tensors {before.name!r} and {after.name!r} overlap")
