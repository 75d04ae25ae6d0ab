"""The key of a full block: SHA-256 over model, namespace and every token up to the block's end.

A key covers the typed, length-framed fields `u8(tag) || u32be(length) || bytes` in tag order:
version, model digest, then the namespace (a sequence's first block) or the parent block's key
(every other block), then the block's token ids as u32be. Different fields can therefore never
encode to the same bytes, and equal keys mean equal models, namespaces and token prefixes.
"""

import sys
from array import array
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


def group_key(key: bytes, group: int) -> bytes:
    """The key under which page group `group` has its block; the first group's is the key itself.

    A suffix cannot confuse: keys have one length, so two group keys are equal only if both
    parts are.
    """
    return key if group == 0 else key + group.to_bytes(4, "big")


def _big_endian(token_ids: Sequence[int]) -> bytes:
    """The token ids as u32be. Raises OverflowError for one that is none."""
    words = array("I", token_ids)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


class BlockHasher:
    """Derives block keys for one model and block size; every cache tier uses the same keys.

    What all messages begin with is hashed once and copied.
    """

    __slots__ = ("_block_size", "_child", "_root", "_split", "_tokens_frame")

    def __init__(self, model_digest: bytes, block_size: int) -> None:
        header = frame(Tag.VERSION, _VERSION) + frame(Tag.MODEL, model_digest)
        self._root = sha256(header)
        self._child = sha256(header + _FRAME.pack(Tag.PARENT, _KEY_BYTES))
        self._block_size = block_size
        self._split = Struct(f"{4 * block_size}s").iter_unpack
        self._tokens_frame = _FRAME.pack(Tag.TOKENS, 4 * block_size)

    def keys(self, namespace: str, parent: bytes | None, token_ids: Sequence[int]) -> list[bytes]:
        """The keys of the full blocks in `token_ids`; what is left after them is ignored.

        `parent` is the key of the block before them, None at the start of a sequence; only there
        is the namespace hashed, as every later key inherits it.
        """
        num_tokens = len(token_ids) // self._block_size * self._block_size
        tokens_frame, copy = self._tokens_frame, self._child.copy
        keys: list[bytes] = []
        for (block,) in self._split(_big_endian(token_ids[:num_tokens])):
            if parent is None:
                message = self._root.copy()
                parent = frame(Tag.NAMESPACE, namespace.encode())
            else:
                message = copy()
            message.update(parent + tokens_frame + block)
            parent = message.digest()
            keys.append(parent)
        return keys
