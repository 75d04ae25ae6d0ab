"""Batches over shuffled pages for tests of kernels, and attention computed the slow way."""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.cpu import structs
from kernels.cpu.structs import address
from kernels.layout import BatchLayout

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Sizes:
    """Of one attention layer; `window` 0 is full attention."""

    kv_heads: int = 2
    shared: int = 3
    head_dim: int = 64
    page_size: int = 16
    window: int = 0

    @property
    def heads(self) -> int:
        return self.kv_heads * self.shared

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def first_seen(self, position: int) -> int:
        return max(0, position + 1 - self.window) if self.window else 0


@dataclass(frozen=True)
class Paged:
    """A batch of rows (first position, new tokens), its qkv, and one layer's pages.

    Pages hold random keys and values wherever a token of their row looks, and NaN in every other
    slot. The layer is of the second of two groups. Where the block tables have no page for
    positions that nobody sees, they name one that is all NaN: `no_page`, the last.
    """

    sizes: Sizes
    rows: Sequence[tuple[int, int]]
    layout: BatchLayout
    qkv: Floats
    keys: Floats
    values: Floats

    @property
    def no_page(self) -> int:
        return len(self.keys) - 1

    @property
    def batch(self) -> structs.Batch:
        """What the kernels get to see of the layout."""
        tables = self.layout.block_tables
        arrays = ("positions", "rows", "row_starts", "first_positions", "block_tables")
        return structs.Batch(
            **{name: address(getattr(self.layout, name), np.int32) for name in arrays},
            num_tokens=len(self.qkv),
            num_rows=tables.shape[1],
            table_width=tables.shape[2],
        )

    @property
    def pages(self) -> structs.Pages:
        """What the kernels get to see of the pages."""
        return structs.Pages(
            keys=address(self.keys, np.float32),
            values=address(self.values, np.float32),
            num_kv_heads=self.sizes.kv_heads,
            head_dim=self.sizes.head_dim,
            page_size=self.sizes.page_size,
            group=1,
            window=self.sizes.window,
        )

    def slot(self, row: int, position: int) -> tuple[int, int]:
        """The page and the slot in it of one position of a row."""
        size = self.sizes.page_size
        return int(self.layout.block_tables[1, row, position // size]), position % size

    def only(self, row: int, first: int, past: int) -> "Paged":
        """A batch of nothing but tokens `first` up to `past` of one row, over the same pages."""
        start, token = self.rows[row][0] + first, self.layout.row_starts[row]
        rows = [(start, past - first)]
        tables = np.ascontiguousarray(self.layout.block_tables[:, row : row + 1])
        qkv = self.qkv[token + first : token + past]
        return replace(self, rows=rows, layout=layout_of(rows, tables), qkv=qkv)


def layout_of(rows: Sequence[tuple[int, int]], block_tables: np.ndarray) -> BatchLayout:
    counts = [count for _, count in rows]
    ranges = [np.arange(start, start + count) for start, count in rows]
    return BatchLayout(
        positions=np.concatenate(ranges).astype(np.int32),
        rows=np.repeat(np.arange(len(rows)), counts).astype(np.int32),
        row_starts=np.cumsum([0, *counts]).astype(np.int32),
        first_positions=np.array([start for start, _ in rows], np.int32),
        block_tables=block_tables,
    )


def make_paged(rows: Sequence[tuple[int, int]], sizes: Sizes, seed: int = 0) -> Paged:
    random = np.random.default_rng(seed)
    size, dim = sizes.page_size, sizes.head_dim
    used = [-(-(start + count) // size) for start, count in rows]
    num_pages = sum(used) + 2
    order = list(random.permutation(num_pages - 1))
    tables = np.full((2, len(rows), max(used) + 1), num_pages - 1, np.int32)
    keys = np.full((num_pages, sizes.kv_heads, dim, size), np.nan, np.float32)
    values = np.full((num_pages, sizes.kv_heads, size, dim), np.nan, np.float32)
    for row, (start, count) in enumerate(rows):
        positions = np.arange(sizes.first_seen(start), start + count)
        for number in np.unique(positions // size):
            tables[1, row, number] = order.pop()
        page, slot = tables[1, row, positions // size], positions % size
        shape = len(positions), sizes.kv_heads, dim
        keys[page, :, :, slot] = random.standard_normal(shape)
        values[page, :, slot, :] = random.standard_normal(shape)
    tokens = sum(count for _, count in rows)
    qkv = 2 * random.standard_normal((tokens, (sizes.heads + 2 * sizes.kv_heads) * dim))
    layout = layout_of(rows, tables)
    return Paged(sizes, rows, layout, qkv.astype(np.float32), keys, values)


def naive_attention(paged: Paged) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One softmax per token and head over the slots it sees, in double precision."""
    sizes = paged.sizes
    queries = paged.qkv.astype(np.float64)[:, : sizes.heads * sizes.head_dim]
    queries = queries.reshape(-1, sizes.kv_heads, sizes.shared, sizes.head_dim)
    out = np.empty(queries.shape)
    for token, row in enumerate(paged.layout.rows):
        position = int(paged.layout.positions[token])
        seen = range(sizes.first_seen(position), position + 1)
        slots = [paged.slot(row, at) for at in seen]
        keys = np.array([paged.keys[page, :, :, slot] for page, slot in slots], np.float64)
        values = np.array([paged.values[page, :, slot] for page, slot in slots], np.float64)
        scores = np.einsum("ghd,pgd->ghp", queries[token], keys) * sizes.scale
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[token] = np.einsum("ghp,pgd->ghd", weights, values)
    return out.reshape(len(out), -1)


def attend(
    library: ctypes.CDLL, paged: Paged, shares: Iterable[tuple[int, int]] | None = None
) -> Floats:
    """The kernel's answer; its items are computed share by share, [first, past) each."""
    sizes, batch, pages = paged.sizes, paged.batch, paged.pages
    out = np.full((len(paged.qkv), sizes.heads * sizes.head_dim), np.nan, np.float32)
    scratch = np.full(library.evh_attention_scratch(sizes.heads, pages), np.nan, np.float32)
    for first, past in shares or [(0, num_items(library, paged))]:
        library.evh_attention(
            address(paged.qkv, np.float32),
            sizes.heads,
            sizes.scale,
            pages,
            batch,
            address(out),
            address(scratch),
            first,
            past,
        )
    return out


def num_items(library: ctypes.CDLL, paged: Paged) -> int:
    return int(library.evh_attention_items(paged.batch, paged.sizes.kv_heads))
