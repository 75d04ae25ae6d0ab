"""What both attention kernels do with a tile of pages: read it, and fold it into a softmax.

A tile is `TILE` consecutive positions of a sequence, the first one a multiple of `TILE`; a page
holds `S` positions, and either divides the other. The pages of one layer and one key/value head g:
`keys + page * G * D * S + g * D * S` is [D, S], `values + page * G * D * S + g * D * S` is [S, D].
D is padded to `D_PAD`, a power of two, with zeros.

Only what is visible is read: block tables hold anything before a window and past a row's end, and
so do slots of pages. Keys are read by whole pages, so that the reads stay as wide as a page allows;
whatever a key's slot held is replaced in the scores. Values are read slot by slot, because zero
times NaN is NaN.
"""

import triton.language as tl

from kernels.triton.jit import inlined

LOWEST = tl.constexpr(-1e38)
"""Where a softmax's peak starts: below every score, and finite, so that no difference is NaN."""


@inlined
def tile_pages(
    table: tl.tensor,
    tile: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    S: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Per position of a tile: its page (int64), and whether that page holds any of [start, end)."""
    index = (tile * TILE + tl.arange(0, TILE)) // S
    held = (index >= start // S) & (index < (end + S - 1) // S)
    pages = tl.load(table + index, mask=held, other=0).to(tl.int64)
    run: tl.constexpr = min(S, TILE)
    # Whoever shares a page shares its number: said so, because reads are only as wide as proven.
    return tl.max_constancy(pages, run), tl.max_constancy(held, run)


@inlined
def load_keys(
    keys: tl.tensor,
    pages: tl.tensor,
    held: tl.tensor,
    tile: tl.tensor,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    S: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """[D_PAD, TILE] of the head that `keys` points to; `PAGE` elements from page to page."""
    dims = tl.arange(0, D_PAD)[:, None]
    slots = (tile * TILE + tl.arange(0, TILE)) % S
    mask = held[None, :]
    if D_PAD != D:
        mask = mask & (dims < D)
    return tl.load(keys + pages[None, :] * PAGE + dims * S + slots[None, :], mask=mask, other=0.0)


@inlined
def load_values(
    values: tl.tensor,
    pages: tl.tensor,
    visible: tl.tensor,
    tile: tl.tensor,
    PAGE: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    S: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tensor:
    """[TILE, D_PAD] of the head that `values` points to; zeros where `visible` [TILE] is not."""
    dims = tl.arange(0, D_PAD)[None, :]
    slots = (tile * TILE + tl.arange(0, TILE)) % S
    mask = visible[:, None]
    if D_PAD != D:
        mask = mask & (dims < D)
    return tl.load(values + pages[:, None] * PAGE + slots[:, None] * D + dims, mask=mask, other=0.0)


@inlined
def fold(
    scores: tl.tensor,
    values: tl.tensor,
    peak: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    PRODUCTS: tl.constexpr,
    PRECISION: tl.constexpr,
) -> tl.tensor:
    """One step of the online softmax, in powers of two (Milakov and Gimelshein 2018).

    `scores` [M, TILE] fp32 hold minus infinity where nothing is to be seen; `values` are
    [TILE, D_PAD]. `peak` and `total` are [M], `sums` are [M, D_PAD], and start at `LOWEST` and 0.
    """
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_peak[:, None])
    shrink = tl.exp2(peak - new_peak)
    total = total * shrink + tl.sum(weights, axis=1)
    sums = tl.dot(
        weights.to(PRODUCTS),
        values.to(PRODUCTS),
        acc=sums * shrink[:, None],
        input_precision=PRECISION,
    )
    return new_peak, total, sums
