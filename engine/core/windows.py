"""What page groups with sliding windows need of a sequence's blocks, and what they still find.

A page group is the layers that share block tables; all groups draw on one pool. With a window of w
tokens the token at position p attends to positions above p - w only, so the blocks wholly below
that are of no use to it or to any later token.
"""

from collections.abc import Callable, Sequence

from engine.core.block_hash import group_key
from engine.core.request import NO_BLOCK


def first_needed_block(position: int, window: int | None, block_size: int) -> int:
    """The index of the first block that the token at `position` attends to, or is written to."""
    return 0 if window is None else max(0, position - window + 1) // block_size


def longest_prefix(
    find: Callable[[bytes], int | None],
    keys: Sequence[bytes],
    windows: Sequence[int | None],
    block_size: int,
) -> tuple[list[int], ...]:
    """The blocks of the longest prefix from which the next token can be computed, per group.

    `keys` are those of a sequence's leading blocks. A group with full attention must have every
    block of the prefix, one with a window those that the token after the prefix attends to. The
    lists are equally long; NO_BLOCK stands where a group needs none.
    """
    length = len(keys)
    tables: list[list[int]] = []
    for group, window in enumerate(windows):
        table: list[int] = []
        for key in keys[:length]:
            block_id = find(group_key(key, group))
            if block_id is None and window is None:
                length = len(table)
                break
            table.append(NO_BLOCK if block_id is None else block_id)
        tables.append(table)
    gap = _last_gap(tables, windows, length, block_size)
    while gap is not None:
        length = gap
        gap = _last_gap(tables, windows, length, block_size)
    for table, window in zip(tables, windows, strict=True):
        del table[length:]
        num_past = first_needed_block(length * block_size, window, block_size)
        table[:num_past] = [NO_BLOCK] * num_past
    return tuple(tables)


def _last_gap(
    tables: Sequence[Sequence[int]], windows: Sequence[int | None], length: int, block_size: int
) -> int | None:
    """A block that a prefix of `length` blocks needs and some group lacks, the last of its group.

    No prefix that ends behind it can do: it would need that block too.
    """
    for table, window in zip(tables, windows, strict=True):
        if window is None:
            continue
        first = first_needed_block(length * block_size, window, block_size)
        for index in range(length - 1, first - 1, -1):
            if table[index] == NO_BLOCK:
                return index
    return None
