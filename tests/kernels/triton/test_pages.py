"""Storing keys and values into pages, and copying pages, in Triton: bit for bit the reference."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.api import KvPages
from kernels.reference import ReferenceKernels
from kernels.triton.copy_pages import copy_pages
from kernels.triton.store_kv import store_kv
from tests.support.paged import Sizes
from tests.support.paged_tensors import DEVICE, DTYPES, only_arguments_touched, paged_tensors

ROWS = [(0, 1), (7, 2), (15, 1), (0, 17), (16, 1), (63, 2), (31, 33)]


@pytest.fixture(autouse=True)
def _nothing_else_is_touched(monkeypatch):
    with only_arguments_touched(monkeypatch):
        yield


def blank(pages):
    return KvPages(torch.zeros_like(pages.keys), torch.zeros_like(pages.values))


@pytest.mark.parametrize("head_dim", [8, 64, 80, 256])
@pytest.mark.parametrize(
    ("page_size", "dtype"), [(8, DTYPES[0]), (16, DTYPES[1]), (32, DTYPES[2]), (64, DTYPES[0])]
)
def test_what_is_stored_is_what_the_reference_stores(head_dim, page_size, dtype):
    batch = paged_tensors(ROWS, Sizes(2, 3, head_dim, page_size, 0), dtype)
    ours, theirs = blank(batch.pages), blank(batch.pages)
    store_kv(batch.qkv, ours, batch.layer, batch.layout)
    ReferenceKernels().store_kv(batch.qkv, theirs, batch.layer, batch.layout)
    assert ours.keys[1].any()
    assert not ours.keys[0].any()
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_copied_pages_equal_their_sources_in_every_layer(data):
    """Any page may be read, also one that is written to: what it held before is copied."""
    num_pages = data.draw(st.integers(1, 8))
    any_page = st.integers(0, num_pages - 1)
    targets = data.draw(st.lists(any_page, unique=True))
    sources = data.draw(st.lists(any_page, min_size=len(targets), max_size=len(targets)))
    dtype = data.draw(st.sampled_from(DTYPES))
    keys = torch.randn(3, num_pages, 2, 24, 8).to(DEVICE, dtype)
    ours = KvPages(keys.clone(), keys.mT.contiguous())
    theirs = KvPages(keys.clone(), keys.mT.contiguous())
    copy_pages(ours, sources, targets)
    theirs.copy(sources, targets)
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


def test_a_page_larger_than_a_program_is_copied_whole():
    keys = torch.randn(2, 3, 4, 80, 32).to(DEVICE)
    pages = KvPages(keys.clone(), keys.mT.contiguous())
    copy_pages(pages, [2], [0])
    assert torch.equal(pages.keys, keys[:, [2, 1, 2]])
    assert torch.equal(pages.values, keys.mT[:, [2, 1, 2]])


@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, -1), (2, 0), (0, 2)])
def test_a_page_that_does_not_exist_is_not_copied(source, target):
    pages = KvPages.allocate(1, 2, 1, 8, 8, device=DEVICE)
    with pytest.raises(IndexError, match=r"page (-1|2) of 2"):
        copy_pages(pages, [1, source], [0, target])


def test_pages_lie_beyond_what_32_bits_count():
    """Pages past 2^31 elements, never committed but for those written here."""
    total = 2**31 // (4 * 256 * 64) + 2
    far = KvPages(
        torch.empty(1, total, 4, 256, 64, dtype=torch.float16, device=DEVICE),
        torch.empty(1, total, 4, 64, 256, dtype=torch.float16, device=DEVICE),
    )
    far.keys[0, -1], far.values[0, -1] = 1.0, 2.0
    copy_pages(far, [total - 1], [0])
    assert far.keys[0, 0].eq(1.0).all()
    assert far.values[0, 0].eq(2.0).all()
