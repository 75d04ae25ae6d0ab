"""Paged attention in Triton against its reference: every kind of row, head, page and window.

The grid runs through lists of lengths 9, 5, 4 and 7, which share no divisor: two lists' values have
all met within as many cases as the product of their lengths. `make prove` has the whole grid.
"""

from dataclasses import replace

import pytest
import torch

from kernels.api import KvPages
from kernels.triton.attention_shape import MAX_SPLITS, AttentionShape, splits
from kernels.triton.decode_attention import decode_attention
from kernels.triton.prefill_attention import prefill_attention
from tests.support.paged import Sizes
from tests.support.paged_tensors import (
    DEVICE,
    DTYPES,
    HEAD_DIMS,
    PAGE_SIZES,
    RATIOS,
    WINDOWS,
    attend,
    distance,
    only_arguments_touched,
    paged_tensors,
    straddling,
)

CASES = [
    (RATIOS[i % 9], HEAD_DIMS[i % 5], PAGE_SIZES[i % 4], WINDOWS[i % 7], DTYPES[i // 9 % 3])
    for i in range(45)
]


@pytest.fixture(autouse=True)
def _nothing_else_is_touched(monkeypatch):
    with only_arguments_touched(monkeypatch):
        yield


@pytest.mark.parametrize(("ratio", "head_dim", "page_size", "window", "dtype"), CASES)
def test_mixed_batches_equal_the_reference(ratio, head_dim, page_size, window, dtype):
    sizes = Sizes(1, ratio, head_dim, page_size, window)
    batch = paged_tensors(straddling(page_size), sizes, dtype)
    assert distance(attend(batch), batch) <= 1


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize(
    ("num_splits", "dtype"),
    [(1, DTYPES[0]), (2, DTYPES[1]), (3, DTYPES[2]), (7, DTYPES[0]), (MAX_SPLITS, DTYPES[0])],
)
def test_decodes_are_the_same_however_they_are_split(num_splits, dtype, window):
    """Short contexts leave splits with nothing to do; windows move where the first one starts."""
    batch = paged_tensors([(0, 1), (64, 1), (300, 1), (7, 3)], Sizes(1, 3, 64, 16, window), dtype)
    out = torch.full((len(batch.qkv), 3 * 64), torch.nan, dtype=dtype, device=DEVICE)
    decode_attention(
        batch.qkv, batch.pages, batch.layer, batch.layout, batch.scale, num_splits, out
    )
    assert out[3:].isnan().all()
    out[3:] = batch.reference()[3:].to(out)
    assert distance(out, batch) <= 1


def test_prefill_leaves_rows_of_one_token_alone():
    batch = paged_tensors([(20, 1), (3, 9), (0, 1)], Sizes(1, 3, 64, 16, 0), torch.float16)
    out = torch.full((len(batch.qkv), 3 * 64), torch.nan, dtype=torch.float16, device=DEVICE)
    prefill_attention(batch.qkv, batch.pages, batch.layer, batch.layout, batch.scale, out)
    assert out[[0, -1]].isnan().all()
    out[[0, -1]] = batch.reference()[[0, -1]].to(out)
    assert distance(out, batch) <= 1


def test_a_prefill_of_many_blocks_equals_the_reference():
    """Blocks of 42 tokens: rows begin and end inside what would be one for the batch."""
    rows = [(0, 100), (5, 1), (17, 43), (0, 2), (70, 41), (9, 1), (0, 42)]
    batch = paged_tensors(rows, Sizes(1, 3, 64, 16, 0), torch.float16)
    assert distance(attend(batch), batch) <= 1


@pytest.mark.parametrize("kv_heads", [2, 5])
def test_several_key_heads_equal_the_reference(kv_heads):
    batch = paged_tensors([(20, 1), (3, 9)], Sizes(kv_heads, 3, 80, 16, 0), torch.float16)
    assert distance(attend(batch), batch) <= 1


def test_one_query_head_more_than_sixteen_a_key_head():
    batch = paged_tensors([(20, 1), (3, 9)], Sizes(1, 17, 64, 16, 0), torch.float16)
    assert distance(attend(batch), batch) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_extreme_scores_stay_finite(dtype):
    batch = paged_tensors([(0, 20), (30, 1)], Sizes(1, 3, 64, 16, 0), dtype)
    batch = replace(batch, qkv=200 * batch.qkv, scale=1.0)
    assert distance(attend(batch), batch) <= 1


def test_pages_lie_beyond_what_32_bits_count():
    """The same batch over the first pages and over the last of 2^31 elements."""
    sizes = Sizes(4, 1, 256, 64, 0)
    batch = paged_tensors([(70, 1), (63, 2)], sizes, torch.float16)
    count = batch.pages.keys.shape[1]
    layers, _, *page = batch.pages.keys.shape
    total = 2**31 // (4 * 256 * 64) + count
    # Never written and so never committed, but for the last pages.
    far = KvPages(
        torch.empty(layers, total, *page, dtype=torch.float16, device=DEVICE),
        torch.empty(
            layers, total, *batch.pages.values.shape[2:], dtype=torch.float16, device=DEVICE
        ),
    )
    far.keys[:, -count:], far.values[:, -count:] = batch.pages.keys, batch.pages.values
    tables = batch.layout.block_tables
    layout = replace(
        batch.layout, block_tables=torch.where(tables < 0, tables, tables + total - count)
    )
    assert torch.equal(attend(replace(batch, pages=far, layout=layout)), attend(batch))


def test_splits_follow_from_what_there_is_to_do():
    assert splits(programs=8, context=8192, tile=64, multiprocessors=108) == 27
    assert splits(programs=8, context=100, tile=64, multiprocessors=108) == 1
    assert splits(programs=8, context=1024, tile=64, multiprocessors=108) == 8
    assert splits(programs=1, context=100_000, tile=64, multiprocessors=132) == MAX_SPLITS
    assert splits(programs=2048, context=8192, tile=64, multiprocessors=132) == 1


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        ("dtype", (torch.float64, 4, 2, 64, 16)),
        ("heads", (torch.float16, 5, 2, 64, 16)),
        ("head_dim", (torch.float16, 4, 2, 60, 16)),
        ("head_dim", (torch.float16, 4, 2, 512, 16)),
        ("page_size", (torch.float16, 4, 2, 64, 12)),
    ],
)
def test_shapes_without_a_kernel_are_refused_by_name(field, shape):
    with pytest.raises(ValueError, match=rf"^{field} must"):
        AttentionShape(*shape)


def test_tensors_that_do_not_fit_are_refused():
    batch = paged_tensors([(0, 1)], Sizes(1, 1, 64, 16, 0), torch.float16)
    with pytest.raises(ValueError, match="the pages are torch"):
        attend(replace(batch, qkv=batch.qkv.float()))
    with pytest.raises(ValueError, match="contiguous"):
        attend(replace(batch, qkv=batch.qkv.repeat(2, 2)[:, ::2]))
