"""Chooses which idle cached block is forgotten next, so that a flood evicts its owner's blocks.

Every owner has one list of its idle cached blocks, oldest first. The victim is the oldest of the
owner that has the most blocks per unit of weight; among equals, the oldest block of all. With one
owner this is least-recently-used. The owner is whoever pays, not a cache namespace, so that fresh
namespaces gain nothing. Blocks that requests hold count too, though only idle ones can be evicted:
else an owner whose requests fill the pool would look poor, and a neighbour below its share would
pay for it.

Cost: adding and removing a block are O(1); an eviction is O(log owners), amortised. An owner is
known only while some block is its own, so the owners are never more than the blocks.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from engine.core.block import Block
from engine.core.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SLACK = 16


class _Rank:
    """Where a block stands in the order of eviction while its owner has `num_blocks` in all.

    The smallest rank goes first. Shares are compared exactly, by cross-multiplication, and no two
    blocks became idle at once, so ranks are totally ordered and eviction is deterministic.
    """

    __slots__ = ("block", "num_blocks", "owner", "stamp", "weight")

    def __init__(self, owner: Owner, num_blocks: int, block: Block) -> None:
        self.owner = owner
        self.num_blocks = num_blocks
        self.weight = owner.weight
        self.block = block
        self.stamp = block.stamp

    def __lt__(self, other: _Rank) -> bool:
        mine, theirs = self.num_blocks * other.weight, other.num_blocks * self.weight
        return mine > theirs or (mine == theirs and self.stamp < other.stamp)


class Owner:
    """An account that blocks are counted against, and the list of its idle cached ones.

    `num_blocks` counts all its blocks: idle, pinned and held.
    `ends.following` is its oldest idle block, `ends.previous` its newest.
    """

    __slots__ = ("ends", "name", "num_blocks", "num_idle", "rank", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1
        self.num_blocks = 0
        self.num_idle = 0
        self.ends = Block(-1)
        self.rank: _Rank | None = None

    def idle_blocks(self) -> Iterator[Block]:
        """The list, oldest first."""
        block = self.ends.following
        while block is not self.ends:
            yield block
            block = block.following


class FairEviction:
    """The idle cached blocks by owner, and the order in which they are given up.

    Changes only mark an owner as stale; it is ranked again when a victim is wanted. A rank that
    is no longer its owner's stays in the heap until it surfaces or the heap is rebuilt.
    """

    def __init__(self) -> None:
        self.num_idle = 0
        self._owners: dict[str, Owner] = {}
        self._heap: list[_Rank] = []
        self._stale: dict[Owner, None] = {}  # an ordered set
        self._clock = 0

    @property
    def num_owners(self) -> int:
        """Owners that have any block."""
        return len(self._owners)

    def claim(self, name: str, count: int, weight: int | None) -> Owner:
        """Count that many blocks, at least one, as the owner's; the caller marks them as such.

        `weight` is the owner's from now on; None leaves it as it is, 1 for a new owner.
        """
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = Owner(name)
        owner.num_blocks += count
        owner.weight = weight or owner.weight
        self._stale[owner] = None
        return owner

    def disclaim(self, block: Block) -> None:
        """The block, not in a list now, is nobody's; its owner is forgotten with its last block."""
        owner, block.owner = _owner_of(block), None
        owner.num_blocks -= 1
        if owner.num_blocks == 0:
            del self._owners[owner.name]
            owner.rank = None
            self._stale.pop(owner, None)
        else:
            self._stale[owner] = None

    def add(self, block: Block) -> None:
        """Append the block, now idle, to its owner's list as the newest."""
        owner = _owner_of(block)
        self._clock += 1
        block.stamp = self._clock
        newest = owner.ends.previous
        newest.following = block
        block.previous = newest
        block.following = owner.ends
        owner.ends.previous = block
        owner.num_idle += 1
        self.num_idle += 1
        self._stale[owner] = None

    def remove(self, block: Block) -> None:
        """Take the block out of its owner's list, wherever it stands."""
        owner = _owner_of(block)
        block.previous.following = block.following
        block.following.previous = block.previous
        block.previous = block.following = block
        owner.num_idle -= 1
        self.num_idle -= 1
        self._stale[owner] = None

    def pop(self) -> Block:
        """Remove and return the victim. There must be an idle block."""
        self._rank_stale()
        while self._heap[0].owner.rank is not self._heap[0]:
            heappop(self._heap)
        block = self._heap[0].owner.ends.following
        self.remove(block)
        return block

    def order(self) -> list[Block]:
        """Every idle block, next victim first.

        An owner's share falls with each block it loses, so merging the owners is sorting ranks.
        """
        ranks = [
            _Rank(owner, owner.num_blocks - index, block)
            for owner in self._owners.values()
            for index, block in enumerate(owner.idle_blocks())
        ]
        return [rank.block for rank in sorted(ranks)]

    def check_integrity(self, used: Iterable[Block]) -> None:
        """Raise IntegrityError unless the lists are the idle ones of all blocks that are `used`."""
        num_blocks = Counter(_owner_of(block) for block in used)
        if set(num_blocks) != set(self._owners.values()):
            raise IntegrityError("an owner is known without blocks, or blocks without their owner")
        listed: list[Block] = []
        for owner, count in num_blocks.items():
            idle = list(owner.idle_blocks())
            if (len(idle), count) != (owner.num_idle, owner.num_blocks):
                raise IntegrityError(f"the blocks of owner {owner.name!r} are miscounted")
            if any(block.owner is not owner or block.num_pins or block.ref_count for block in idle):
                raise IntegrityError(f"owner {owner.name!r} lists a block that is not its idle own")
            if owner not in self._stale and (owner.rank is None) is (owner.num_idle > 0):
                raise IntegrityError(f"owner {owner.name!r} is not ranked as it should be")
            listed.extend(idle)
        if len(listed) != self.num_idle:
            raise IntegrityError("the count of idle cached blocks is wrong")

    def _rank_stale(self) -> None:
        """Rank again every owner that changed since the last victim."""
        for owner in self._stale:
            owner.rank = None
            if owner.num_idle:
                owner.rank = _Rank(owner, owner.num_blocks, owner.ends.following)
                heappush(self._heap, owner.rank)
        self._stale.clear()
        if len(self._heap) > 2 * len(self._owners) + _SLACK:
            self._heap = [rank for rank in self._heap if rank.owner.rank is rank]
            heapify(self._heap)


def _owner_of(block: Block) -> Owner:
    if block.owner is None:
        raise IntegrityError(f"block {block.block_id} has no owner")
    return block.owner
