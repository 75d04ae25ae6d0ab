"""One KV block: who counts on it, what finds it, and its neighbours in its owner's idle list."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.core.eviction import Owner


class Block:
    """A page of KV memory. The pool alone writes its counts, the eviction order its links.

    `owner` is set unless the block is free; `key` and `namespace` are set together, while the block
    is in the prefix cache. `stamp` says when the block last became idle: a smaller one is older.
    """

    __slots__ = (
        "block_id",
        "following",
        "key",
        "namespace",
        "num_pins",
        "owner",
        "previous",
        "ref_count",
        "stamp",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.num_pins = 0
        self.key: bytes | None = None
        self.namespace = ""
        self.owner: Owner | None = None
        self.stamp = 0
        self.previous = self
        self.following = self
