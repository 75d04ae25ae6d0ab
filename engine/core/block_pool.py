"""Owns every KV block: each is free, cached (idle but still found by key) or held by requests.

All blocks exist from the start; nothing is created later. Idle blocks (free and cached) form one
doubly linked list in eviction order, threaded through the blocks themselves, so that taking,
returning and reviving a block are O(1). A block without a key is worth nothing to anyone and goes
to the front; one with a key goes to the back, which makes eviction least-recently-used. Callers
release a request's blocks tail first, so a prefix loses its deepest block before its root.
"""

from collections.abc import Iterable, Mapping, Sequence

from engine.core.errors import CoreError, IntegrityError


class PoolExhausted(CoreError):  # noqa: N818 - a condition, named as callers say it
    """More blocks were asked for than are idle; nothing was taken."""


class _Block:
    """A block and its links; linked exactly while `ref_count` is 0."""

    __slots__ = ("block_id", "following", "key", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: bytes | None = None
        self.previous = self
        self.following = self


class BlockPool:
    """The blocks, their reference counts, and the map from key to the one block that has it."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = [_Block(block_id) for block_id in range(num_blocks)]
        self._by_key: dict[bytes, _Block] = {}
        self._ends = _Block(-1)  # its `following` is evicted next, its `previous` last
        self._num_idle = 0
        self._num_cached = 0
        for block in self._blocks:
            self._link_before(self._ends, block)

    @property
    def num_blocks(self) -> int:
        """All blocks: free + cached + held."""
        return len(self._blocks)

    @property
    def num_idle(self) -> int:
        """Blocks that can be allocated now: free and cached."""
        return self._num_idle

    @property
    def num_free(self) -> int:
        """Idle blocks that no key finds."""
        return self._num_idle - self._num_cached

    @property
    def num_cached(self) -> int:
        """Idle blocks that a key still finds."""
        return self._num_cached

    @property
    def num_held(self) -> int:
        """Blocks that at least one request holds."""
        return len(self._blocks) - self._num_idle

    def find(self, key: bytes) -> int | None:
        """The block with this key, idle or held; the caller must `hold` it to keep it."""
        block = self._by_key.get(key)
        return None if block is None else block.block_id

    def ref_count(self, block_id: int) -> int:
        """How many requests hold the block."""
        return self._blocks[block_id].ref_count

    def allocate(self, count: int) -> list[int]:
        """Take the `count` blocks at the front of the eviction order, each held once.

        Raises PoolExhausted, and changes nothing, when fewer are idle.
        """
        if count > self._num_idle:
            raise PoolExhausted(f"{count} blocks wanted, {self._num_idle} idle")
        taken: list[int] = []
        for _ in range(count):
            block = self._ends.following
            self._unlink(block)
            if block.key is not None:
                del self._by_key[block.key]
                block.key = None
            block.ref_count = 1
            taken.append(block.block_id)
        return taken

    def hold(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block; an idle one leaves the eviction order."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count == 0:
                self._unlink(block)
            block.ref_count += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference from each block, in the order given (a request's tail first)."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count == 0:
                raise IntegrityError(f"block {block_id} is released but nobody holds it")
            block.ref_count -= 1
            if block.ref_count == 0:
                front = block.key is None
                self._link_before(self._ends.following if front else self._ends, block)

    def publish(self, block_id: int, key: bytes) -> None:
        """Let `key` find this held, computed block.

        If another block has the key already, this one stays anonymous: the contents are equal.
        """
        if key not in self._by_key:
            block = self._blocks[block_id]
            block.key = key
            self._by_key[key] = block

    def eviction_order(self) -> list[int]:
        """The idle blocks, next to be allocated first (for tests and integrity checks)."""
        order: list[int] = []
        block = self._ends.following
        while block is not self._ends:
            order.append(block.block_id)
            block = block.following
        return order

    def check_integrity(self, references: Mapping[int, int]) -> None:
        """Raise IntegrityError unless each block is held exactly as often as `references` says."""
        for block in self._blocks:
            expected = references.get(block.block_id, 0)
            if block.ref_count != expected:
                raise IntegrityError(
                    f"block {block.block_id} counts {block.ref_count} holders, has {expected}"
                )
            if block.ref_count > 1 and block.key is None:
                raise IntegrityError(f"block {block.block_id} is shared but was never published")
        self._check_idle(self.eviction_order())

    def _check_idle(self, order: Sequence[int]) -> None:
        idle = [block.block_id for block in self._blocks if block.ref_count == 0]
        if sorted(order) != idle or len(idle) != self._num_idle:
            raise IntegrityError("the eviction order is not the set of idle blocks")
        if sum(self._blocks[block_id].key is not None for block_id in idle) != self._num_cached:
            raise IntegrityError("the count of cached blocks is wrong")
        keyed = {block.key: block for block in self._blocks if block.key is not None}
        if keyed != self._by_key:
            raise IntegrityError("the key map and the blocks' keys differ")

    def _link_before(self, following: _Block, block: _Block) -> None:
        previous = following.previous
        previous.following = block
        block.previous = previous
        block.following = following
        following.previous = block
        self._num_idle += 1
        self._num_cached += block.key is not None

    def _unlink(self, block: _Block) -> None:
        block.previous.following = block.following
        block.following.previous = block.previous
        block.previous = block.following = block
        self._num_idle -= 1
        self._num_cached -= block.key is not None
