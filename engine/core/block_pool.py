"""Owns every KV block: each is free, cached (nobody holds it, a key finds it) or held by requests.

All blocks exist from the start; nothing is created later. A free block holds nothing anyone could
find and is taken first, the last one freed before the others. When none is left, the eviction
order (`engine.core.eviction`) gives up an idle cached block and its key is forgotten. Taking,
returning and reviving a block are O(1), evicting one O(log owners). Callers release a request's
blocks tail first, so a prefix loses its deepest block before its root.

A pinned block is never evicted. While nobody holds it, it counts as cached, but not as idle.
"""

from collections.abc import Iterable, Mapping, Sequence

from engine.core.block import Block
from engine.core.errors import CoreError, IntegrityError
from engine.core.eviction import FairEviction


class PoolExhausted(CoreError):  # noqa: N818 - a condition, named as callers say it
    """More blocks were asked for than are idle; nothing was taken."""


class BlockPool:
    """The blocks, their reference counts, and the map from key to the one block that has it."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._by_key: dict[bytes, Block] = {}
        self._free = self._blocks[::-1]  # the next to be taken is the last
        self._eviction = FairEviction()
        self._num_pinned = 0
        self._num_pinned_unheld = 0
        self._num_evictions = 0

    @property
    def num_blocks(self) -> int:
        """All blocks: free + cached + held."""
        return len(self._blocks)

    @property
    def num_idle(self) -> int:
        """Blocks that can be allocated now: free and cached, without the pinned."""
        return len(self._free) + self._eviction.num_idle

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and no key finds."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but a key still finds, pinned ones included."""
        return self._eviction.num_idle + self._num_pinned_unheld

    @property
    def num_held(self) -> int:
        """Blocks that at least one request holds."""
        return len(self._blocks) - self.num_free - self.num_cached

    @property
    def num_pinned(self) -> int:
        """Blocks that are pinned, held or not."""
        return self._num_pinned

    @property
    def num_evictions(self) -> int:
        """Cached blocks that were given up, since the start, because none was free."""
        return self._num_evictions

    @property
    def num_owners(self) -> int:
        """Owners with a block, held or cached."""
        return self._eviction.num_owners

    def find(self, key: bytes) -> int | None:
        """The block with this key, idle or held; the caller must `hold` it to keep it."""
        block = self._by_key.get(key)
        return None if block is None else block.block_id

    def ref_count(self, block_id: int) -> int:
        """How many requests hold the block."""
        return self._blocks[block_id].ref_count

    def is_idle(self, block_id: int) -> bool:
        """Whether the block counts in `num_idle`: holding it would leave one fewer to allocate."""
        block = self._blocks[block_id]
        return block.ref_count == 0 and block.num_pins == 0

    def is_last_hold(self, block_id: int) -> bool:
        """Whether one release would make this held block idle."""
        block = self._blocks[block_id]
        return block.ref_count == 1 and block.num_pins == 0

    def allocate(self, count: int, owner: str = "", weight: int | None = None) -> list[int]:
        """Take `count` blocks for the owner, free ones before victims, each held once.

        A block stays the owner's until it is free again, and counts as such before any victim is
        chosen. `weight` is the owner's from now on; None leaves it. Raises PoolExhausted, and
        changes nothing, when fewer are idle.
        """
        if count > self.num_idle:
            raise PoolExhausted(f"{count} blocks wanted, {self.num_idle} idle")
        if count == 0:
            return []
        account = self._eviction.claim(owner, count, weight)
        taken: list[int] = []
        for _ in range(count):
            block = self._free.pop() if self._free else self._evict()
            block.ref_count = 1
            block.owner = account
            taken.append(block.block_id)
        return taken

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; an idle one leaves the eviction order."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count == 0:
                if block.key is None:
                    raise IntegrityError(f"block {block_id} is free and cannot be shared")
                self._take_from_idle(block)
            block.ref_count += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference from each block, in the order given (a request's tail first)."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count == 0:
                raise IntegrityError(f"block {block_id} is released but nobody holds it")
            block.ref_count -= 1
            if block.ref_count == 0:
                self._return_to_idle(block)

    def publish(self, block_id: int, key: bytes, namespace: str) -> None:
        """Let `key` find this held, computed block.

        If another block has the key already, this one stays anonymous: the contents are equal.
        """
        if key in self._by_key:
            return
        block = self._blocks[block_id]
        if block.ref_count == 0 or block.key is not None:
            raise IntegrityError(f"block {block_id} is idle or has a key: it cannot be published")
        block.key = key
        block.namespace = namespace
        self._by_key[key] = block

    def num_unpinned(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are not pinned yet."""
        return sum(self._blocks[block_id].num_pins == 0 for block_id in block_ids)

    def pin(self, block_ids: Iterable[int]) -> None:
        """Add one pin to each published block; with any, it cannot be evicted."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.key is None:
                raise IntegrityError(f"block {block_id} is not cached and cannot be pinned")
            if block.num_pins == 0:
                self._num_pinned += 1
                if block.ref_count == 0:
                    self._eviction.remove(block)
                    self._num_pinned_unheld += 1
            block.num_pins += 1

    def unpin(self, block_ids: Iterable[int]) -> int:
        """Drop one pin from each block, in the order given; how many became idle by it."""
        num_idle = self.num_idle
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.num_pins == 0:
                raise IntegrityError(f"block {block_id} is unpinned but has no pin")
            block.num_pins -= 1
            if block.num_pins == 0:
                self._num_pinned -= 1
                if block.ref_count == 0:
                    self._num_pinned_unheld -= 1
                    self._eviction.add(block)
        return self.num_idle - num_idle

    def erase(self, namespace: str) -> int:
        """Forget every idle block published under the namespace; how many. O(num_blocks)."""
        erased = [
            block
            for block in reversed(self._blocks)
            if block.key is not None
            and block.namespace == namespace
            and self.is_idle(block.block_id)
        ]
        for block in erased:
            self._eviction.remove(block)
            self._forget(block)
        self._free.extend(erased)
        return len(erased)

    def eviction_order(self) -> list[int]:
        """The idle blocks, next to be allocated first (for tests; O(n log n))."""
        order = [*reversed(self._free), *self._eviction.order()]
        return [block.block_id for block in order]

    def check_integrity(self, references: Mapping[int, int], pins: Mapping[int, int]) -> None:
        """Raise IntegrityError unless each block is held and pinned as often as these say."""
        for block in self._blocks:
            expected = references.get(block.block_id, 0)
            if block.ref_count != expected:
                raise IntegrityError(
                    f"block {block.block_id} counts {block.ref_count} holders, has {expected}"
                )
            if block.num_pins != pins.get(block.block_id, 0):
                raise IntegrityError(f"block {block.block_id} has the wrong number of pins")
        self._check_places([block for block in self._blocks if block.ref_count == 0])
        keyed = {block.key: block for block in self._blocks if block.key is not None}
        if keyed != self._by_key:
            raise IntegrityError("the key map and the blocks' keys differ")
        self._eviction.check_integrity(
            block for block in self._blocks if block.ref_count or block.key is not None
        )

    def _check_places(self, unheld: Sequence[Block]) -> None:
        """Every block that nobody holds is in exactly the one place it belongs to."""
        free = [block.block_id for block in unheld if block.key is None]
        if sorted(block.block_id for block in self._free) != free:
            raise IntegrityError("the free list is not the set of free blocks")
        if any(block.owner is not None for block in self._free):
            raise IntegrityError("a free block has an owner")
        if sum(block.num_pins > 0 for block in unheld) != self._num_pinned_unheld:
            raise IntegrityError("the count of pinned blocks that nobody holds is wrong")
        if sum(block.num_pins > 0 for block in self._blocks) != self._num_pinned:
            raise IntegrityError("the count of pinned blocks is wrong")
        if len(unheld) != len(free) + self.num_cached:
            raise IntegrityError("the count of cached blocks is wrong")

    def _take_from_idle(self, block: Block) -> None:
        if block.num_pins:
            self._num_pinned_unheld -= 1
        else:
            self._eviction.remove(block)

    def _return_to_idle(self, block: Block) -> None:
        if block.key is None:
            self._eviction.disclaim(block)
            self._free.append(block)
        elif block.num_pins:
            self._num_pinned_unheld += 1
        else:
            self._eviction.add(block)

    def _evict(self) -> Block:
        self._num_evictions += 1
        block = self._eviction.pop()
        self._forget(block)
        return block

    def _forget(self, block: Block) -> None:
        """No key finds the block any more, and it counts against nobody."""
        if block.key is None:
            raise IntegrityError(f"block {block.block_id} has no key to forget")
        del self._by_key[block.key]
        block.key = None
        block.namespace = ""
        self._eviction.disclaim(block)
