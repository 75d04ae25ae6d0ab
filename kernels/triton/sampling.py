"""Draws tokens from logits without sorting them: bounds are searched, sums are of integers.

Two kernels, one program per row. `gather_candidates` reads the vocabulary three times and writes
down, in order of id, the tokens that can matter, usually a few hundred; `draw_tokens` finds among
them the bound of top-k, then that of top-p, by bisection, and walks to the drawn point.

A token's weight is its probability over the likeliest one's, in units of 2^-40, rounded down: sums
of integers are exact in any order, so equal logits give equal tokens however they are computed, and
what is less than a unit, together less than 2^-22 of everything in 2^18 tokens, is never drawn.
Another token than with sums in fp64 comes out only where the rounding of weights (2^-22 of each)
decides: at `min_p`, at the end of a nucleus, or when the point falls between two tokens.

Shapes: `logits` [R, VOCAB] of any type, dense. `rules` [R, 5] fp64: log2 e over the temperature,
top_k in [1, VOCAB], top_p, min_p, point. The first `counts[r]` of `ids`, `values` and `weights`
[R, VOCAB] are row r's candidates, their logits and their weights; 0 of them where no logit is a
number. `ends` [R, 2] are the smallest and the largest of the candidates' logits, `wholes` [R] the
weight of the vocabulary where top-p is a share of all of it, else 0. What a draw means is said in
`kernels.draws.Draws`; the reference is `ReferenceKernels.sample`.
"""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.draws import Draws
from kernels.triton.jit import Launch, Signature, inlined, kernel

BLOCK = 4096
ROWS_AT_ONCE = 64
"""Rows whose candidates there is room for at once: 16 bytes a token of the vocabulary."""

_UNITS = tl.constexpr(float(1 << 40))
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)  # the bits of an fp32 number but for its sign
_LOWEST = tl.constexpr(float("-inf"))


def sample(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """The drawn token [R] int64 of each row of logits; -1 where none of a row's is a number."""
    rows, vocab = logits.shape
    device = logits.device
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    rules = torch.from_numpy(_rules(draws, vocab)).to(device)
    room = (min(rows, ROWS_AT_ONCE), vocab)
    ids = torch.empty(room, dtype=torch.int32, device=device)
    values = torch.empty(room, dtype=torch.float32, device=device)
    weights = torch.empty(room, dtype=torch.int64, device=device)
    counts = torch.empty(room[0], dtype=torch.int32, device=device)
    wholes = torch.empty(room[0], dtype=torch.int64, device=device)
    ends = torch.empty(room[0], 2, dtype=torch.float32, device=device)
    how = launch(vocab).keywords()
    for first in range(0, rows, ROWS_AT_ONCE):
        now = slice(first, min(first + ROWS_AT_ONCE, rows))
        grid = (now.stop - first,)
        found = (ids, values, weights, counts, wholes, ends)
        gather_candidates[grid](logits[now], rules[now], *found, **how)
        draw_tokens[grid](rules[now], *found, tokens[now], **how)
    return tokens


def _rules(draws: Draws, vocab: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`rules` of the kernels; the largest logit is the first of one."""
    greedy = (draws.temperatures <= 0) | (draws.top_ks == 1)
    top_ks = np.where(draws.top_ks > 0, np.minimum(draws.top_ks, vocab), vocab)
    temperatures = np.where(greedy, 1.0, draws.temperatures)
    with np.errstate(over="ignore"):
        scales = np.log2(np.e) / temperatures  # infinite for tiny ones, as it should be
    return np.stack(
        [
            scales,
            np.where(greedy, 1, top_ks),
            draws.top_ps,
            draws.min_ps,
            draws.points,
        ],
        axis=1,
    )


def launch(vocab: int) -> Launch:
    """Of both kernels."""
    block = min(BLOCK, triton.next_power_of_2(vocab))
    return Launch({"VOCAB": vocab, "BLOCK": block}, num_warps=16, num_stages=1)


@kernel()
def gather_candidates(
    logits: tl.tensor,
    rules: tl.tensor,
    ids: tl.tensor,
    values: tl.tensor,
    weights: tl.tensor,
    counts: tl.tensor,
    wholes: tl.tensor,
    ends: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write a row's candidates in order of id, their number, and the row's largest logit."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * VOCAB
    ids += row * VOCAB
    values += row * VOCAB
    weights += row * VOCAB
    lanes = tl.arange(0, BLOCK)
    scale = tl.load(rules + row * 5).to(tl.float32)
    top_k = tl.load(rules + row * 5 + 1).to(tl.int32)
    top_p = tl.load(rules + row * 5 + 2)
    min_p = tl.load(rules + row * 5 + 3).to(tl.float32)

    best = tl.full([BLOCK], _LOWEST, tl.float32)
    numbers = tl.full([BLOCK], 0, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        token = start + lanes
        x = tl.load(logits + token, token < VOCAB, float("nan")).to(tl.float32)
        best = tl.maximum(best, tl.where(x >= _LOWEST, x, _LOWEST))
        numbers += (x >= _LOWEST).to(tl.int32)
    top = tl.max(best, 0)

    # k lanes have a maximum at or above the k-th largest maximum: so k tokens are at or above it.
    bound = tl.full([], _LOWEST, tl.float32)
    if top_k <= BLOCK:
        bound = _kth_largest(best, top_k, top)
    whole = tl.full([], 0, tl.int64)
    least = tl.full([], 0, tl.int64)
    if (top_k == VOCAB) & (top_p < 1):
        sums = tl.full([BLOCK], 0, tl.int64)
        for start in range(0, VOCAB, BLOCK):
            token = start + lanes
            x = tl.load(logits + token, token < VOCAB, float("nan")).to(tl.float32)
            sums += tl.where(token < VOCAB, _likely_weight(x, top, scale, min_p), 0)
        # Without all tokens of at most this weight, the rest still reaches what top-p wants.
        whole = tl.sum(sums, 0)
        least = (whole - _share(top_p, whole)) // VOCAB

    count = tl.full([], 0, tl.int32)
    low = top
    for start in range(0, VOCAB, BLOCK):
        token = start + lanes
        x = tl.load(logits + token, token < VOCAB, float("nan")).to(tl.float32)
        weight = _likely_weight(x, top, scale, min_p)
        x = tl.where(x >= _LOWEST, x, _LOWEST)
        found = ((weight > least) & (x >= bound) & (token < VOCAB)).to(tl.int32)
        places = count + tl.cumsum(found, 0) - found
        tl.store(ids + places, token, found > 0)
        tl.store(values + places, x, found > 0)
        tl.store(weights + places, weight, found > 0)
        count += tl.sum(found, 0)
        low = tl.minimum(low, tl.min(tl.where(found > 0, x, top), 0))
    tl.store(counts + row, tl.where(tl.sum(numbers, 0) > 0, count, 0))
    tl.store(wholes + row, whole)
    tl.store(ends + row * 2, low)
    tl.store(ends + row * 2 + 1, top)


@kernel()
def draw_tokens(
    rules: tl.tensor,
    ids: tl.tensor,
    values: tl.tensor,
    weights: tl.tensor,
    counts: tl.tensor,
    wholes: tl.tensor,
    ends: tl.tensor,
    tokens: tl.tensor,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Draw a row's token: of the candidates above a bound and the first few at that bound."""
    row = tl.program_id(0).to(tl.int64)
    ids += row * VOCAB
    values += row * VOCAB
    weights += row * VOCAB
    count = tl.load(counts + row)
    low, top = tl.load(ends + row * 2), tl.load(ends + row * 2 + 1)
    scale = tl.load(rules + row * 5).to(tl.float32)
    top_k = tl.load(rules + row * 5 + 1).to(tl.int32)
    top_p = tl.load(rules + row * 5 + 2)
    point = tl.load(rules + row * 5 + 4)

    bound = tl.full([], _LOWEST, tl.float32)
    at_bound = tl.full([], VOCAB, tl.int64)
    if top_k < count:
        bound = _search(values, weights, count, low, top, top_k, False, BLOCK)
        at_bound = top_k - _above(values, weights, count, bound, False, BLOCK)
    total = _above(values, weights, count, bound, True, BLOCK)
    total += at_bound * _likely_weight(bound, top, scale, 0.0)
    if top_p < 1:
        whole = tl.load(wholes + row)
        wanted = _share(top_p, tl.where(whole > 0, whole, total))
        bound = _search(values, weights, count, tl.maximum(bound, low), top, wanted, True, BLOCK)
        above = _above(values, weights, count, bound, True, BLOCK)
        each = _likely_weight(bound, top, scale, 0.0)
        at_bound = (wanted - above + each - 1) // each
        total = above + at_bound * each

    # The last token is never passed, though a point just below 1 may round up to the whole.
    goal = tl.minimum((point * total.to(tl.float64)).to(tl.int64), total - 1)
    token = tl.full([], VOCAB, tl.int32)
    passed = tl.full([], 0, tl.int64)
    ties = tl.full([], 0, tl.int64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        candidate = tl.load(ids + place, place < count, VOCAB)
        x = tl.load(values + place, place < count, float("nan"))
        weight = tl.load(weights + place, place < count, 0)
        tied = (x == bound).to(tl.int64)
        inside = (x > bound) | ((tied > 0) & (ties + tl.cumsum(tied, 0) <= at_bound))
        weight = tl.where(inside, weight, 0)
        reached = passed + tl.cumsum(weight, 0)
        token = tl.minimum(token, tl.min(tl.where(inside & (reached > goal), candidate, VOCAB), 0))
        passed += tl.sum(weight, 0)
        ties += tl.sum(tied, 0)
    tl.store(tokens + row, tl.where(count > 0, token, -1).to(tl.int64))


@inlined
def _search(
    values: tl.tensor,
    weights: tl.tensor,
    count: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    wanted: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The largest number in [low, high] with `wanted` candidates, or weight, at or above it.

    There is that much at or above `low`. Bisects the order of fp32 numbers.
    """
    first = _key(low)
    last = _key(high)
    while first < last:
        middle = first + (last - first + 1) // 2
        bits = middle.to(tl.int32)
        number = (bits ^ ((bits >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)
        sums = tl.full([BLOCK], 0, tl.int64)
        for start in range(0, count, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = tl.load(values + place, place < count, float("nan")) >= number
            if BY_WEIGHT:
                sums += tl.load(weights + place, inside, 0)
            else:
                sums += inside.to(tl.int64)
        enough = tl.sum(sums, 0) >= wanted
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle - 1)
    bits = first.to(tl.int32)
    return (bits ^ ((bits >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)


@inlined
def _above(
    values: tl.tensor,
    weights: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    BY_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """How many candidates are above a bound, or their weight; int64."""
    sums = tl.full([BLOCK], 0, tl.int64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = tl.load(values + place, place < count, float("nan")) > bound
        if BY_WEIGHT:
            sums += tl.load(weights + place, inside, 0)
        else:
            sums += inside.to(tl.int64)
    return tl.sum(sums, 0)


@inlined
def _kth_largest(values: tl.tensor, k: tl.tensor, top: tl.tensor) -> tl.tensor:
    """The k-th largest of values [BLOCK], of which `top` is the largest; k <= BLOCK."""
    first = _key(tl.min(values, 0))
    last = _key(top)
    while first < last:
        middle = first + (last - first + 1) // 2
        bits = middle.to(tl.int32)
        number = (bits ^ ((bits >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)
        enough = tl.sum((values >= number).to(tl.int32), 0) >= k
        first = tl.where(enough, middle, first)
        last = tl.where(enough, last, middle - 1)
    bits = first.to(tl.int32)
    return (bits ^ ((bits >> 31) & _MAGNITUDE)).to(tl.float32, bitcast=True)


@inlined
def _key(x: tl.tensor) -> tl.tensor:
    """An integer in the order of the fp32 number x; its own inverse on the bits."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & _MAGNITUDE)).to(tl.int64)


@inlined
def _likely_weight(x: tl.tensor, top: tl.tensor, scale: tl.tensor, min_p: tl.tensor) -> tl.tensor:
    """The weight of logits x, NaN being the lowest; 0 where it is below `min_p` of the largest."""
    x = tl.where(x >= _LOWEST, x, _LOWEST)
    likely = tl.where(x == top, 1.0, tl.exp2((x - top) * scale))
    return (tl.where(likely >= min_p, likely, 0.0) * _UNITS).to(tl.int64)


@inlined
def _share(part: tl.tensor, total: tl.tensor) -> tl.tensor:
    """The least int64 in [1, total] that is at least `part` (fp64) of a total."""
    product = part * total.to(tl.float64)
    below = product.to(tl.int64)
    share = below + (below.to(tl.float64) < product).to(tl.int64)
    return tl.minimum(tl.maximum(share, 1), total)


def signatures() -> list[Signature]:
    """For Gemma 3's vocabulary."""
    found = {
        "ids": "*i32",
        "values": "*fp32",
        "weights": "*i64",
        "counts": "*i32",
        "wholes": "*i64",
        "ends": "*fp32",
    }
    vocab = 262_144
    signatures = [
        Signature(
            f"gather_candidates of {vocab} {dtype}",
            gather_candidates,
            {"logits": f"*{dtype}", "rules": "*fp64", **found},
            launch(vocab),
            ("logits", "rules", *found),
        )
        for dtype in ("bf16", "fp32")
    ]
    types = {"rules": "*fp64", **found, "tokens": "*i64"}
    name = f"draw_tokens of {vocab}"
    return [*signatures, Signature(name, draw_tokens, types, launch(vocab), tuple(types))]
