"""The key of a full block: SHA-256 over model, namespace and every token up to the block's end.

A key covers the typed, length-framed fields `u8(tag) || u32be(length) || bytes` in tag order:
version, model digest, then the namespace (a sequence's first block) or the parent block's key
(every other block), then the block's token ids as u32be. Different fields can therefore never
encode to the same bytes, and equal keys mean equal models, namespaces and token prefixes.
"""

from collections.abc import Sequence
from enum import IntEnum
from hashlib import sha256
from struct import Struct


class Tag(IntEnum):
    """The type of a framed field; a number is never reused for another meaning."""

    VERSION = 1
    MODEL = 2
    NAMESPACE = 3
    PARENT = 4
    TOKENS = 5


_VERSION = b"evenhand/block/v1"
_FRAME = Struct(">BI")
_KEY_BYTES = 32


def frame(tag: Tag, data: bytes) -> bytes:
    """One field in its canonical encoding."""
    return _FRAME.pack(tag, len(data)) + data


class BlockHasher:
    """Derives block keys for one model and block size; every cache tier uses the same keys."""

    __slots__ = ("_child", "_header", "_pack", "_tokens_frame")

    def __init__(self, model_digest: bytes, block_size: int) -> None:
        self._header = frame(Tag.VERSION, _VERSION) + frame(Tag.MODEL, model_digest)
        self._child = self._header + _FRAME.pack(Tag.PARENT, _KEY_BYTES)
        self._tokens_frame = _FRAME.pack(Tag.TOKENS, 4 * block_size)
        self._pack = Struct(f">{block_size}I").pack

    def first(self, namespace: str, token_ids: Sequence[int]) -> bytes:
        """The key of a sequence's first block."""
        root = frame(Tag.NAMESPACE, namespace.encode())
        tokens = self._pack(*token_ids)
        return sha256(self._header + root + self._tokens_frame + tokens).digest()

    def following(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The key of the block after the one whose key is `parent`."""
        return sha256(self._child + parent + self._tokens_frame + self._pack(*token_ids)).digest()
