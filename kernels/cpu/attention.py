"""Paged attention on the CPU: reads keys and values in their pages, any mix of rows in one call.

A work item is one tile (up to `TILE` consecutive tokens of one row) and one key/value head; the
query heads that share that head are computed together, so a page is read once per tile. Within an
item the softmax is computed online over spans of `SPAN` pages, from the first page that the window
of the tile's first token reaches: earlier entries of a block table are never looked at. Only what a
token sees is read into its result: whatever a page holds past its position, or before its window,
cannot reach its output.

Layouts are those of `kernels.api`; the reference is `ReferenceKernels.paged_attention`.
"""

# ruff: noqa: PLR0917 - compiled kernels take arrays and sizes by position

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import prange

from kernels.cpu.jit import inlined, kernel

TILE = 16
SPAN = 8
FULL = 0
"""The window of layers that attend to every earlier position."""

_f4 = np.float32
_LOWEST = np.float32(-1e30)


@inlined
def exp(x: Any) -> Any:
    """e^max(x, -87) for x <= 0 to 1 ulp or so (Cephes polynomial), in a form that vectorises."""
    clipped = max(x, _f4(-87.0))
    n = np.floor(clipped * _f4(1.44269504) + _f4(0.5))
    f = clipped - n * _f4(0.693359375) + n * _f4(2.12194440e-4)
    p = _f4(1.9875691500e-4)
    p = p * f + _f4(1.3981999507e-3)
    p = p * f + _f4(8.3334519073e-3)
    p = p * f + _f4(4.1665795894e-2)
    p = p * f + _f4(1.6666665459e-1)
    p = p * f + _f4(5.0000001201e-1)
    p = p * f * f + f + _f4(1.0)
    power_of_two = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * power_of_two


@inlined
def add_product(out: Any, factors: Any, matrix: Any, rows: int, columns: int) -> None:
    """`out[:columns] += factors[:rows] @ matrix[:rows, :columns]`, eight rows per pass."""
    r = 0
    while r + 8 <= rows:
        a, b, c, d = factors[r], factors[r + 1], factors[r + 2], factors[r + 3]
        e, f, g, h = factors[r + 4], factors[r + 5], factors[r + 6], factors[r + 7]
        for j in range(columns):
            first = (a * matrix[r, j] + b * matrix[r + 1, j]) + (
                c * matrix[r + 2, j] + d * matrix[r + 3, j]
            )
            second = (e * matrix[r + 4, j] + f * matrix[r + 5, j]) + (
                g * matrix[r + 6, j] + h * matrix[r + 7, j]
            )
            out[j] += first + second
        r += 8
    while r < rows:
        a = factors[r]
        for j in range(columns):
            out[j] += a * matrix[r, j]
        r += 1


@inlined
def fold_softmax(scores: Any, n: int, scale: Any, top: Any, out: Any, dim: int) -> Any:
    """Turn scores[:n] into weights relative to the new maximum and rescale what `out` holds.

    Returns (new maximum, factor for the old sum, sum of the new weights).
    """
    highest = scores[0]
    for j in range(1, n):
        highest = max(highest, scores[j])
    highest = max(top, highest * scale)
    total = _f4(0)
    for j in range(n):
        weight = exp(scores[j] * scale - highest)
        scores[j] = weight
        total += weight
    shrink = exp(top - highest)
    for j in range(dim):
        out[j] *= shrink
    return highest, shrink, total


@inlined
def start_tile(
    out: Any, tops: Any, sums: Any, token: int, count: int, column: int, shared: int, dim: int
) -> None:
    """Nothing attended yet: zero output and sum, lowest maximum."""
    for i in range(count):
        out[token + i, column : column + shared * dim] = _f4(0)
    tops[: count * shared] = _LOWEST
    sums[: count * shared] = _f4(0)


@inlined
def queries_seeing(position: int, width: int, tile: tuple[int, int, int], window: int) -> Any:
    """Which of the tile's tokens, [first, past), see any of `width` positions from `position`."""
    _, count, start = tile
    past = count if window == FULL else min(count, position + width - 1 + window - start)
    return max(0, position - start), past


@inlined
def num_hidden(position: int, window: int, base: int) -> Any:
    """How many positions from `base` on lie before the window of the token at `position`."""
    return 0 if window == FULL else max(0, position + 1 - window - base)


@inlined
def score_pages(
    scores: Any,
    qkv: Any,
    keys: Any,
    pages: Any,
    kv_head: int,
    tile: tuple[int, int, int],
    window: int,
    base: int,
    num_pages: int,
    shared: int,
    dim: int,
    page_size: int,
) -> None:
    """Raw scores of the tile's queries with the pages holding positions `base`, ..."""
    token, _, _ = tile
    for b in range(num_pages):
        page = keys[pages[base // page_size + b], kv_head]
        low = b * page_size
        first, past = queries_seeing(base + low, page_size, tile, window)
        for i in range(first, past):
            for g in range(shared):
                column = (kv_head * shared + g) * dim
                part = scores[i * shared + g, low : low + page_size]
                part[:] = _f4(0)
                add_product(part, qkv[token + i, column : column + dim], page, dim, page_size)


@inlined
def fold_scores(
    scores: Any,
    tops: Any,
    sums: Any,
    out: Any,
    kv_head: int,
    tile: tuple[int, int, int],
    window: int,
    base: int,
    width: int,
    shared: int,
    dim: int,
    scale: Any,
) -> None:
    """Scores of positions `base`, ... become softmax weights, each query's over what it sees."""
    token, _, start = tile
    first, past = queries_seeing(base, width, tile, window)
    for i in range(first, past):
        low = num_hidden(start + i, window, base)
        high = min(width, start + i + 1 - base)
        for g in range(shared):
            at = i * shared + g
            column = (kv_head * shared + g) * dim
            top, shrink, total = fold_softmax(
                scores[at, low:high],
                high - low,
                scale,
                tops[at],
                out[token + i, column : column + dim],
                dim,
            )
            tops[at] = top
            sums[at] = sums[at] * shrink + total


@inlined
def add_values(
    out: Any,
    scores: Any,
    values: Any,
    pages: Any,
    kv_head: int,
    tile: tuple[int, int, int],
    window: int,
    base: int,
    num_pages: int,
    shared: int,
    dim: int,
    page_size: int,
) -> None:
    """Add the weighted values of the pages holding positions `base`, ..."""
    token, _, start = tile
    for b in range(num_pages):
        page = values[pages[base // page_size + b], kv_head]
        offset = b * page_size
        first, past = queries_seeing(base + offset, page_size, tile, window)
        for i in range(first, past):
            low = num_hidden(start + i, window, base + offset)
            high = min(page_size, start + i + 1 - base - offset)
            visible = page[low:high]
            for g in range(shared):
                column = (kv_head * shared + g) * dim
                weights = scores[i * shared + g, offset + low : offset + high]
                add_product(
                    out[token + i, column : column + dim], weights, visible, high - low, dim
                )


@inlined
def finish_tile(
    out: Any, sums: Any, token: int, count: int, column: int, shared: int, dim: int
) -> None:
    """Divide by the sum of the weights."""
    for i in range(count):
        for g in range(shared):
            inverse = _f4(1) / sums[i * shared + g]
            for d in range(dim):
                out[token + i, column + g * dim + d] *= inverse


@cache
def attention_kernel(page_size: int, head_dim: int, *, windowed: bool) -> Callable[..., None]:
    """The compiled kernel for one page size and head size; compiles or loads it on first use.

    Arguments: qkv, keys and values of one layer, row_starts, first_positions, the block tables of
    the layer's group, window (`FULL` unless `windowed`), number of workers, scale of the scores,
    out [N, H * D].
    Full attention has a kernel of its own, in which the window's arithmetic is constant and gone.
    """
    width = SPAN * page_size

    def attend(
        qkv: Any,
        keys: Any,
        values: Any,
        row_starts: Any,
        first_positions: Any,
        block_tables: Any,
        window: int,
        num_workers: int,
        scale: float,
        out: Any,
    ) -> None:
        num_kv_heads = keys.shape[1]
        shared = out.shape[1] // (num_kv_heads * head_dim)
        for worker in prange(num_workers):
            reach = window if windowed else FULL
            scores = np.empty((TILE * shared, width), np.float32)
            tops = np.empty(TILE * shared, np.float32)
            sums = np.empty(TILE * shared, np.float32)
            item = 0
            for row in range(first_positions.shape[0]):
                pages = block_tables[row]
                for token in range(row_starts[row], row_starts[row + 1], TILE):
                    count = min(TILE, row_starts[row + 1] - token)
                    start = first_positions[row] + token - row_starts[row]
                    tile = (token, count, start)
                    first = num_hidden(start, reach, 0) // page_size * page_size
                    for head in range(num_kv_heads):
                        # Items go round robin: later tiles of a long row see more positions.
                        mine = item % num_workers == worker
                        item += 1
                        if not mine:
                            continue
                        column = head * shared * head_dim
                        start_tile(out, tops, sums, token, count, column, shared, head_dim)
                        for base in range(first, start + count, width):
                            n = min(SPAN, (start + count - base + page_size - 1) // page_size)
                            score_pages(
                                scores,
                                qkv,
                                keys,
                                pages,
                                head,
                                tile,
                                reach,
                                base,
                                n,
                                shared,
                                head_dim,
                                page_size,
                            )
                            fold_scores(
                                scores,
                                tops,
                                sums,
                                out,
                                head,
                                tile,
                                reach,
                                base,
                                width,
                                shared,
                                head_dim,
                                np.float32(scale),
                            )
                            add_values(
                                out,
                                scores,
                                values,
                                pages,
                                head,
                                tile,
                                reach,
                                base,
                                n,
                                shared,
                                head_dim,
                                page_size,
                            )
                        finish_tile(out, sums, token, count, column, shared, head_dim)

    # The cache's files are named after the function. Under one name, two processes that store
    # different sizes at the same moment could each be left with the other's machine code.
    attend.__qualname__ += f"_{page_size}_{head_dim}" + ("_windowed" if windowed else "")
    return kernel(
        "void(f4[:,::1], f4[:,:,:,::1], f4[:,:,:,::1], i4[::1], i4[::1], i4[:,::1], i8, i8,"
        " f8, f4[:,::1])",
        parallel=True,
    )(attend)
