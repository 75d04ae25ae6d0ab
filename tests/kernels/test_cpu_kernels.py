"""The CPU kernels against their plain twins, over shapes that straddle pages and tiles."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.api import KvPages, TensorLayout
from kernels.cpu.attention import attention_kernel
from kernels.cpu.ops import CpuKernels
from kernels.layout import PagedLayer
from kernels.reference import ReferenceKernels

FAST, PLAIN = CpuKernels(threads=2), ReferenceKernels()
NO_PAGE = -1
LAYER = PagedLayer(group=1, index=1)


def random_tensor(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_layout(rows, page_size, num_pages, seed, window=None):
    """Rows of (start, count) over shuffled pages, in the second of two groups.

    No row owns the last page, and NO_PAGE means it: whoever reads it, reads NaN.
    """
    order = np.random.default_rng(seed).permutation(num_pages - 1).tolist()
    used = [-(-(start + count) // page_size) for start, count in rows]
    tables = torch.full((2, len(rows), max(used)), NO_PAGE, dtype=torch.int32)
    for row, (start, _) in enumerate(rows):
        first = first_visible(start, window) // page_size
        held = range(first, used[row])
        tables[1, row, first : used[row]] = torch.tensor([order.pop() for _ in held])
    counts = [count for _, count in rows]
    return TensorLayout(
        positions=torch.cat([torch.arange(start, start + count) for start, count in rows]),
        row_starts=torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
        first_positions=torch.tensor([start for start, _ in rows], dtype=torch.int32),
        block_tables=tables,
        rows=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts)).int(),
        longest_row=max(counts),
        longest_context=max(start + count for start, count in rows),
    )


def first_visible(position, window):
    return 0 if window is None else max(0, position - window + 1)


def pages_filled_up_to(layout, rows, kv_heads, head_dim, page_size, num_pages, window=None):
    """Random keys and values wherever a token of a row looks; NaN in every other slot."""
    pages = KvPages.allocate(2, num_pages, kv_heads, head_dim, page_size)
    pages.keys.fill_(float("nan"))
    pages.values.fill_(float("nan"))
    for row, (start, count) in enumerate(rows):
        positions = torch.arange(first_visible(start, window), start + count)
        held = layout.block_tables[1, row, positions // page_size].long(), positions % page_size
        shape = len(positions), kv_heads, head_dim
        pages.keys[1, held[0], :, :, held[1]] = random_tensor(2 * row, *shape)
        pages.values[1, held[0], :, held[1]] = random_tensor(2 * row + 1, *shape)
    return pages


def enough_pages(rows, page_size):
    return sum(-(-(start + count) // page_size) for start, count in rows) + 3


def assert_attention_equals_reference(rows, kv_heads, shared, size, seed, window=None):
    page_size, head_dim = size
    num_pages = enough_pages(rows, page_size)
    layout = make_layout(rows, page_size, num_pages, seed, window)
    pages = pages_filled_up_to(layout, rows, kv_heads, head_dim, page_size, num_pages, window)
    tokens = sum(count for _, count in rows)
    qkv = 2 * random_tensor(seed, tokens, (shared + 2) * kv_heads * head_dim)
    layer = PagedLayer(group=1, index=1, window=window)
    got = FAST.paged_attention(qkv, pages, layer, layout, head_dim**-0.5)
    expected = PLAIN.paged_attention(qkv, pages, layer, layout, head_dim**-0.5)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


# One kernel is compiled per (page size, head size): the first sizes are the default model's.
SIZES = [(16, 64), (5, 20)]
BATCHES = {
    "one": [(0, 1)],
    "decodes": [(15, 1), (16, 1), (17, 1), (127, 1), (128, 1), (200, 1)],
    "prefills": [(0, 15), (0, 16), (0, 17)],
    "mixed": [(130, 33), (5, 1), (0, 40), (64, 1)],
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_attention_equals_reference(rows, shared, size):
    assert_attention_equals_reference(rows, 2, shared, size, seed=len(rows))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("window", [1, 2, 5, 15, 16, 17, 33, 128, 129, 1000])
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_windowed_attention_equals_reference(rows, window, size):
    assert_attention_equals_reference(rows, 2, 3, size, seed=len(rows), window=window)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    shared=st.integers(1, 9),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 1000),
    window=st.none() | st.integers(1, 200),
)
def test_attention_equals_reference_for_any_batch(rows, kv_heads, shared, size, seed, window):
    assert_attention_equals_reference(rows, kv_heads, shared, size, seed, window)


@pytest.mark.parametrize("kernels", [FAST, PLAIN], ids=["fast", "plain"])
def test_a_window_holds_that_many_positions_and_the_tokens_own_is_one(kernels):
    """Values of one-hot positions under equal scores: the output names what was attended to."""
    count, window, page_size = 40, 6, 16
    pages = KvPages.allocate(2, 4, 1, 64, page_size)
    layout = make_layout([(0, count)], page_size, 4, seed=0)
    qkv = torch.zeros(count, 3 * 64)
    qkv[:, 2 * 64 : 2 * 64 + count] = torch.eye(count)
    layer = PagedLayer(group=1, index=1, window=window)
    kernels.store_kv(qkv, pages, layer, layout)
    attended = kernels.paged_attention(qkv, pages, layer, layout, 1 / 8)[:, :count]
    positions = torch.arange(count)
    distance = positions[:, None] - positions
    inside = ((distance >= 0) & (distance < window)).float()
    torch.testing.assert_close(attended, inside / inside.sum(-1, keepdim=True))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_copied_pages_equal_their_sources_in_every_layer(data):
    num_pages = data.draw(st.integers(1, 8))
    any_page = st.integers(0, num_pages - 1)
    targets = data.draw(st.lists(any_page, unique=True))
    sources = data.draw(st.lists(any_page, min_size=len(targets), max_size=len(targets)))
    shape = 3, num_pages, 2, 4, 5
    pages = KvPages(random_tensor(1, *shape), random_tensor(2, *shape).mT.contiguous())
    keys, values = pages.keys.clone(), pages.values.clone()
    pages.copy(sources, targets)
    for before, after in ((keys, pages.keys), (values, pages.values)):
        wanted = before.clone()
        for source, target in zip(sources, targets, strict=True):
            wanted[:, target] = before[:, source]
        assert torch.equal(after, wanted)


@pytest.mark.parametrize(("source", "target"), [(NO_PAGE, 0), (0, NO_PAGE), (2, 0), (0, 2)])
def test_a_page_that_does_not_exist_is_not_copied(source, target):
    pages = KvPages.allocate(1, 2, 1, 2, 2)
    with pytest.raises((IndexError, RuntimeError)):
        pages.copy([source], [target])


def test_kernels_of_different_sizes_never_share_a_cache_file():
    kernels = [attention_kernel(*size, windowed=w) for size in SIZES for w in (False, True)]
    names = {kernel._cache._impl.filename_base for kernel in kernels}
    assert len(names) == len(kernels)


def test_attention_survives_extreme_scores():
    rows = [(0, 20)]
    layout = make_layout(rows, 16, 4, seed=0)
    pages = pages_filled_up_to(layout, rows, 1, 64, 16, 4)
    qkv = 1e4 * random_tensor(1, 20, 3 * 64)
    got = FAST.paged_attention(qkv, pages, LAYER, layout, 1 / 8)
    torch.testing.assert_close(got, PLAIN.paged_attention(qkv, pages, LAYER, layout, 1 / 8))


@pytest.mark.parametrize("window", [None, 20])
def test_a_row_computes_the_same_alone_and_in_a_batch(window):
    rows = [(40, 1), (7, 30), (100, 1)]
    layer = PagedLayer(group=1, index=1, window=window)
    layout = make_layout(rows, 16, 20, 4, window)
    pages = pages_filled_up_to(layout, rows, 2, 64, 16, 20, window)
    qkv = random_tensor(2, 32, 5 * 2 * 64)
    together = FAST.paged_attention(qkv, pages, layer, layout, 1 / 8)
    alone = TensorLayout(
        positions=layout.positions[31:],
        rows=torch.zeros(1, dtype=torch.int32),
        longest_row=1,
        longest_context=32,
        row_starts=torch.tensor([0, 1], dtype=torch.int32),
        first_positions=layout.first_positions[2:],
        block_tables=layout.block_tables[:, 2:].contiguous(),
    )
    assert torch.equal(FAST.paged_attention(qkv[31:], pages, layer, alone, 1 / 8)[0], together[31])


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([2, 6, 64]),
    page_size=st.integers(1, 17),
)
def test_store_kv_writes_exactly_what_the_reference_writes(rows, kv_heads, head_dim, page_size):
    num_pages = enough_pages(rows, page_size)
    layout = make_layout(rows, page_size, num_pages, seed=1)
    tokens = sum(count for _, count in rows)
    qkv = random_tensor(3, tokens, (4 + 2) * kv_heads * head_dim)
    ours = KvPages.allocate(2, num_pages, kv_heads, head_dim, page_size)
    theirs = KvPages.allocate(2, num_pages, kv_heads, head_dim, page_size)
    FAST.store_kv(qkv, ours, LAYER, layout)
    PLAIN.store_kv(qkv, theirs, LAYER, layout)
    assert ours.keys[1].any()
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)
    for untouched in (ours.keys[0], ours.values[0], ours.keys[:, -1], ours.values[:, -1]):
        assert not untouched.any()


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 9), width=st.integers(1, 70), exponent=st.integers(-12, 12))
def test_rms_norm_equals_reference(tokens, width, exponent):
    x = random_tensor(width, tokens, width) * 10.0**exponent
    weight = random_tensor(1, width)
    torch.testing.assert_close(
        FAST.rms_norm(x, weight, 1e-5), PLAIN.rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6
    )


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 5),
    half=st.integers(1, 40),
    num_heads=st.integers(1, 4),
    others=st.integers(0, 2),
)
def test_rotary_equals_reference_and_leaves_values_alone(tokens, half, num_heads, others):
    angles = 100 * random_tensor(5, tokens, half)
    ours = random_tensor(6, tokens, (num_heads + others) * 2 * half)
    before, theirs = ours.clone(), ours.clone()
    FAST.rotary(ours, angles.cos(), angles.sin(), num_heads)
    PLAIN.rotary(theirs, angles.cos(), angles.sin(), num_heads)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours[:, num_heads * 2 * half :], before[:, num_heads * 2 * half :])


def test_gated_equals_reference():
    gate_up = 10 * random_tensor(7, 5, 60)
    torch.testing.assert_close(FAST.gated(gate_up, "silu"), PLAIN.gated(gate_up, "silu"))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 16, 33])
def test_packed_linear_equals_the_plain_product(rows):
    weight = random_tensor(8, 96, 48)
    x = random_tensor(9, rows, 48)
    torch.testing.assert_close(FAST.linear(weight)(x), PLAIN.linear(weight)(x))
