"""Gives requests the blocks that hold their keys and values, and finds computed ones again.

Who owns what: the pool owns the blocks; a request holds a reference to every block in its tables;
this class is the only writer of a request's `block_tables`, `block_keys` and
`num_committed_blocks`. A block is written only by the one request that allocated it, and can be
shared only below the tokens its writer has computed: through its key once it was published, or by
a fork, which copies the block that both would write.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.core.batch import BlockCopy
from engine.core.block_hash import BlockHasher, group_key
from engine.core.block_pool import BlockPool
from engine.core.config import CoreConfig
from engine.core.errors import IntegrityError, NamespaceInUse
from engine.core.pins import PinnedPrefixes
from engine.core.request import NO_BLOCK, Request
from engine.core.windows import first_needed_block, longest_prefix


class KVCache:
    """Block tables, one per page group, and the prefix cache over one pool."""

    def __init__(self, config: CoreConfig) -> None:
        self._block_size = config.block_size
        self._prefix_cache = config.prefix_cache
        self._windows = config.windows
        self._sliding = tuple(
            (group, window) for group, window in enumerate(config.windows) if window is not None
        )
        self._hasher = BlockHasher(config.model_digest, config.block_size)
        self.pool = BlockPool(config.num_blocks)
        self._pins = PinnedPrefixes(self.pool)
        self._num_holders: Counter[str] = Counter()  # requests with blocks, by namespace

    def caches(self, request: Request) -> bool:
        """Whether the request's full blocks are offered to the prefix cache."""
        return self._prefix_cache and request.use_cache

    def looks_up(self, request: Request) -> bool:
        """Whether the request may start from cached blocks.

        Not if its prompt is to be scored: that takes the logits of every position.
        """
        return self.caches(request) and request.sampling.prompt_logprobs is None

    def lookup(self, request: Request) -> tuple[list[int], ...]:
        """The cached blocks that hold the leading known tokens, at most one token short of all.

        The last known token is always computed, because its logits are needed. One list per page
        group, equally long; NO_BLOCK stands where the next token's window needs no block.
        """
        if not self.looks_up(request):
            return tuple([] for _ in self._windows)
        limit = (request.num_tokens - 1) // self._block_size
        self._extend_keys(request, limit)
        keys = request.block_keys[:limit]
        return longest_prefix(self.pool.find, keys, self._windows, self._block_size)

    def admit(self, request: Request, reserve_blocks: int) -> bool:
        """Allocate for the whole known sequence, reusing hits, if `reserve_blocks` stay idle.

        Sets `num_computed_tokens` to the tokens hit. A refusal changes no block. Raises
        ValueError for a weight below 1.
        """
        hits = self.lookup(request)
        num_hit = len(hits[0])
        num_idle_hits = sum(
            block_id != NO_BLOCK and self.pool.is_idle(block_id)
            for table in hits
            for block_id in table
        )
        if not self._fits(request, num_hit, reserve_blocks + num_idle_hits):
            return False
        self._begin(request, hits, num_hit * self._block_size)
        return True

    def fork(
        self, sibling: Request, request: Request, reserve_blocks: int
    ) -> tuple[BlockCopy, ...] | None:
        """Let a request that begins like `sibling` go on from what the sibling has computed.

        It shares every full block before its last known token, takes a copy of the one it will
        write next, and sets `num_computed_tokens`. The copies returned must be made before the
        next step computes anything. Where a window of
        the sibling has moved past what the request needs, it is admitted like any other. None: it
        does not fit, or not without touching the reserve; nothing changed.

        Raises ValueError for requests that do not begin alike in one namespace.
        """
        num_shared = min(sibling.num_computed_tokens, request.num_tokens - 1)
        if sibling.namespace != request.namespace or (
            tuple(sibling.token_ids(0, num_shared)) != tuple(request.token_ids(0, num_shared))
        ):
            raise ValueError("a request can only be forked from one that begins like it")
        if not self._still_has(sibling, num_shared):
            return () if self.admit(request, reserve_blocks) else None
        num_full, num_in_tail = divmod(num_shared, self._block_size)
        if not self._fits(request, num_full, reserve_blocks):
            return None
        if len(request.block_keys) < num_full:
            request.block_keys[:] = sibling.block_keys[:num_full]
        shared = tuple(table[:num_full] for table in sibling.block_tables)
        self._begin(request, shared, num_shared)
        if num_in_tail == 0:
            return ()
        tables = zip(sibling.block_tables, request.block_tables, strict=True)
        return tuple(BlockCopy(theirs[num_full], ours[num_full]) for theirs, ours in tables)

    def extend(self, request: Request) -> bool:
        """Make sure the last known token has a place; False, changing nothing, if it has not.

        At most one block per page group is missing, as admission took all for what was known.
        """
        tables = request.block_tables
        if request.num_tokens <= len(tables[0]) * self._block_size:
            return True
        if self.pool.num_idle < len(tables):
            return False
        block_ids = self.pool.allocate(len(tables), request.owner)
        for table, block_id in zip(tables, block_ids, strict=True):
            table.append(block_id)
        return True

    def commit(self, request: Request) -> None:
        """Publish the blocks that the last step filled, then let go of those no window needs.

        Call it once their tokens are computed and counted in `num_computed_tokens`.
        """
        num_full = request.num_computed_tokens // self._block_size
        if num_full > request.num_committed_blocks and self.caches(request):
            self._publish(request, num_full)
        if self._sliding:
            self._let_go(request)

    def free(self, request: Request) -> None:
        """Give every block back, tail first; published ones stay cached until evicted."""
        if not request.block_tables:
            return
        for table in request.block_tables:
            self.pool.release(block_id for block_id in reversed(table) if block_id != NO_BLOCK)
        request.block_tables = ()
        self._num_holders[request.namespace] -= 1
        if self._num_holders[request.namespace] == 0:
            del self._num_holders[request.namespace]

    def frees_a_block(self, request: Request) -> bool:
        """Whether freeing the request now would make at least one block idle."""
        return any(
            block_id != NO_BLOCK and self.pool.is_last_hold(block_id)
            for table in request.block_tables
            for block_id in reversed(table)
        )

    def pin(self, namespace: str, token_ids: Sequence[int]) -> int:
        """Keep the cached leading blocks of these tokens from being evicted; the tokens pinned.

        Raises PinLimit, changing nothing, if that would pin more than a quarter of the pool.
        """
        keys = self._hasher.keys(namespace, None, token_ids)
        tables = longest_prefix(self.pool.find, keys, self._windows, self._block_size)
        num_tokens = len(tables[0]) * self._block_size
        if num_tokens:
            block_ids = [block_id for table in tables for block_id in table if block_id != NO_BLOCK]
            self._pins.pin(keys[-1], namespace, num_tokens, block_ids)
        return num_tokens

    def unpin(self, namespace: str, token_ids: Sequence[int]) -> int:
        """Undo `pin` of the same tokens; how many were pinned. The blocks stay cached."""
        keys = self._hasher.keys(namespace, None, token_ids)
        return self._pins.unpin(keys[-1]) if keys else 0

    def release_pins(self) -> int:
        """Undo every pin; how many there were.

        The last resort: nothing runs and the next request does not fit, or the oldest running one
        needs a block that no newer one can free. What fits an empty pool must run.
        """
        return self._pins.release()

    def erase(self, namespace: str) -> int:
        """Forget every cached block of the namespace, pinned ones too; how many.

        Raises NamespaceInUse, changing nothing, while a request of the namespace holds blocks:
        it would publish them afterwards.
        """
        if namespace in self._num_holders:
            raise NamespaceInUse(self._num_holders[namespace])
        self._pins.release(namespace)
        return self.pool.erase(namespace)

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Raise IntegrityError unless blocks and tables agree and no writable block is shared."""
        references: Counter[int] = Counter()
        holders: Counter[str] = Counter()
        writable: list[int] = []
        for request in requests:
            if request.block_tables:
                self._check_tables(request)
                holders[request.namespace] += 1
            num_full = request.num_computed_tokens // self._block_size
            for table in request.block_tables:
                references.update(block_id for block_id in table if block_id != NO_BLOCK)
                writable.extend(table[num_full:])
        self.pool.check_integrity(references, self._pins.references())
        if holders != self._num_holders:
            raise IntegrityError("the count of requests with blocks in a namespace is wrong")
        for block_id in writable:
            if references[block_id] > 1:
                raise IntegrityError(f"block {block_id} is writable and in two tables")

    def _check_tables(self, request: Request) -> None:
        """Every group has each block that the next token or a later one needs, and no other."""
        name, position = request.request_id, request.num_computed_tokens
        for table, window in zip(request.block_tables, self._windows, strict=True):
            if len(table) != len(request.block_tables[0]):
                raise IntegrityError(f"the block tables of {name} differ in length")
            first = first_needed_block(position, window, self._block_size)
            if NO_BLOCK in table[first:] or any(block != NO_BLOCK for block in table[:first]):
                raise IntegrityError(f"{name} does not hold just the blocks its windows need")

    def _fits(self, request: Request, num_shared: int, num_to_spare: int) -> bool:
        """Whether blocks `num_shared` and up can be allocated and `num_to_spare` stay idle."""
        num_new = (self._blocks_for(request.num_tokens) - num_shared) * len(self._windows)
        return self.pool.num_idle - num_new >= num_to_spare

    def _begin(self, request: Request, shared: tuple[list[int], ...], num_computed: int) -> None:
        """Hold the shared leading blocks, allocate the others, and count the request in."""
        if request.weight < 1:
            raise ValueError("an owner's weight must be at least 1")
        num_shared = len(shared[0])
        num_own = self._blocks_for(request.num_tokens) - num_shared
        for table in shared:
            self.pool.hold(block_id for block_id in table if block_id != NO_BLOCK)
        for table in shared:
            table.extend(self.pool.allocate(num_own, request.owner, request.weight))
        request.block_tables = shared
        request.num_committed_blocks = num_shared
        request.num_computed_tokens = num_computed
        self._num_holders[request.namespace] += 1

    def _publish(self, request: Request, num_full: int) -> None:
        self._extend_keys(request, num_full)
        for group, table in enumerate(request.block_tables):
            for index in range(request.num_committed_blocks, num_full):
                key = group_key(request.block_keys[index], group)
                self.pool.publish(table[index], key, request.namespace)
        request.num_committed_blocks = num_full

    def _let_go(self, request: Request) -> None:
        """Release the blocks that neither the next token nor a later one attends to."""
        for group, window in self._sliding:
            table = request.block_tables[group]
            index = first_needed_block(request.num_computed_tokens, window, self._block_size)
            while index > 0 and table[index - 1] != NO_BLOCK:
                index -= 1
                self.pool.release((table[index],))
                table[index] = NO_BLOCK

    def _still_has(self, sibling: Request, num_shared: int) -> bool:
        """Whether the sibling holds all that the token at `num_shared` attends to."""
        if num_shared <= 0 or not sibling.block_tables:
            return False
        stop = self._blocks_for(num_shared)
        return not any(
            NO_BLOCK in table[first_needed_block(num_shared, window, self._block_size) : stop]
            for table, window in zip(sibling.block_tables, self._windows, strict=True)
        )

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _extend_keys(self, request: Request, num_blocks: int) -> None:
        """Hash the blocks up to `num_blocks` that were not hashed before."""
        keys, size = request.block_keys, self._block_size
        if len(keys) < num_blocks:
            token_ids = request.token_ids(len(keys) * size, num_blocks * size)
            parent = keys[-1] if keys else None
            keys.extend(self._hasher.keys(request.namespace, parent, token_ids))
