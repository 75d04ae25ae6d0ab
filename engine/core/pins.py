"""Prefixes that an operator keeps in the cache, whatever else is evicted.

A pin is named by the key of its prefix's last full block, and pinning again replaces it, so
callers may repeat themselves. At most a quarter of the pool can be pinned: the rest is always
there for requests, and even pins give way when a request could not run otherwise.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.block_pool import BlockPool
from engine.core.errors import PinLimit

_LIMIT_DIVISOR = 4


@dataclass(frozen=True, slots=True)
class _Pin:
    """`block_ids` in the order of release: a prefix's deepest block first."""

    namespace: str
    num_tokens: int
    block_ids: tuple[int, ...]


class PinnedPrefixes:
    """The pins over one pool; the only one who pins blocks there."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._limit = pool.num_blocks // _LIMIT_DIVISOR
        self._pins: dict[bytes, _Pin] = {}

    def pin(self, name: bytes, namespace: str, num_tokens: int, block_ids: Sequence[int]) -> None:
        """Pin these cached blocks of a prefix under `name`. Raises PinLimit, changing nothing."""
        wanted = self._pool.num_pinned + self._pool.num_unpinned(block_ids)
        if wanted > self._limit:
            raise PinLimit(wanted, self._limit)
        self._pool.pin(block_ids)
        self._drop(name)
        self._pins[name] = _Pin(namespace, num_tokens, tuple(reversed(block_ids)))

    def unpin(self, name: bytes) -> int:
        """Drop the pin; the tokens it covered, 0 if there was none."""
        pin = self._pins.get(name)
        self._drop(name)
        return 0 if pin is None else pin.num_tokens

    def release(self, namespace: str | None = None) -> int:
        """Drop every pin, or every one of a namespace; how many there were."""
        dropped = [name for name, pin in self._pins.items() if namespace in {None, pin.namespace}]
        for name in dropped:
            self._drop(name)
        return len(dropped)

    def references(self) -> Counter[int]:
        """How many pins each block has."""
        return Counter(block_id for pin in self._pins.values() for block_id in pin.block_ids)

    def _drop(self, name: bytes) -> None:
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._pool.unpin(pin.block_ids)
