"""Gives requests the blocks that hold their keys and values, and finds computed ones again.

Who owns what: the pool owns the blocks; a request holds a reference to every block in its table;
this class is the only writer of a request's `block_tables`, `block_keys` and
`num_committed_blocks`. A block is written only by the one request that allocated it, and can be
shared only after it was computed in full and committed.
"""

from collections import Counter
from collections.abc import Iterable

from engine.core.block_hash import BlockHasher
from engine.core.block_pool import BlockPool
from engine.core.config import CoreConfig
from engine.core.errors import IntegrityError
from engine.core.request import Request


class KVCache:
    """Block tables and the prefix cache over one pool."""

    def __init__(self, config: CoreConfig) -> None:
        self._block_size = config.block_size
        self._prefix_cache = config.prefix_cache
        self._hasher = BlockHasher(config.model_digest, config.block_size)
        self.pool = BlockPool(config.num_blocks)

    def caches(self, request: Request) -> bool:
        """Whether the request may look up and insert blocks."""
        return self._prefix_cache and request.use_cache

    def lookup(self, request: Request) -> list[int]:
        """The cached blocks that hold the leading known tokens, at most one token short of all.

        The last known token is always computed, because its logits are needed.
        """
        if not self.caches(request):
            return []
        limit = (request.num_tokens - 1) // self._block_size
        self._extend_keys(request, limit)
        hits: list[int] = []
        for key in request.block_keys[:limit]:
            block_id = self.pool.find(key)
            if block_id is None:
                break
            hits.append(block_id)
        return hits

    def admit(self, request: Request, reserve_blocks: int) -> bool:
        """Allocate for the whole known sequence, reusing hits, if `reserve_blocks` stay idle.

        Sets `num_computed_tokens` to the tokens hit. A refusal changes no block.
        """
        hits = self.lookup(request)
        idle_hits = sum(self.pool.ref_count(block_id) == 0 for block_id in hits)
        num_new = -(-request.num_tokens // self._block_size) - len(hits)
        if self.pool.num_idle - idle_hits - num_new < reserve_blocks:
            return False
        self.pool.hold(hits)
        request.block_tables = ([*hits, *self.pool.allocate(num_new)],)
        request.num_committed_blocks = len(hits)
        request.num_computed_tokens = len(hits) * self._block_size
        return True

    def extend(self, request: Request) -> bool:
        """Make sure the last known token has a place; False, changing nothing, if none is idle."""
        (table,) = request.block_tables
        if request.num_tokens <= len(table) * self._block_size:
            return True
        if self.pool.num_idle == 0:
            return False
        table.extend(self.pool.allocate(1))
        return True

    def commit(self, request: Request) -> None:
        """Publish the blocks that the last step filled; call once their tokens are computed."""
        num_full = request.num_computed_tokens // self._block_size
        if num_full <= request.num_committed_blocks or not self.caches(request):
            return
        self._extend_keys(request, num_full)
        (table,) = request.block_tables
        for index in range(request.num_committed_blocks, num_full):
            self.pool.publish(table[index], request.block_keys[index])
        request.num_committed_blocks = num_full

    def free(self, request: Request) -> None:
        """Give every block back, tail first; committed ones stay cached until evicted."""
        for table in request.block_tables:
            self.pool.release(reversed(table))
        request.block_tables = ()

    def frees_a_block(self, request: Request) -> bool:
        """Whether freeing the request now would make at least one block idle."""
        (table,) = request.block_tables
        return any(self.pool.ref_count(block) == 1 for block in reversed(table))

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise IntegrityError unless blocks and tables agree and no writable block is shared."""
        references: Counter[int] = Counter()
        writable: list[int] = []
        for request in requests:
            num_full = request.num_computed_tokens // self._block_size
            for table in request.block_tables:
                references.update(table)
                writable.extend(table[num_full:])
        self.pool.check_integrity(references)
        for block_id in writable:
            if references[block_id] > 1:
                raise IntegrityError(f"block {block_id} is writable and in two tables")

    def _extend_keys(self, request: Request, num_blocks: int) -> None:
        """Hash the blocks up to `num_blocks` that were not hashed before."""
        keys, size = request.block_keys, self._block_size
        for index in range(len(keys), num_blocks):
            token_ids = request.token_ids(index * size, (index + 1) * size)
            if index == 0:
                keys.append(self._hasher.first(request.namespace, token_ids))
            else:
                keys.append(self._hasher.following(keys[-1], token_ids))
