"""Batches over shuffled pages as tensors, and what the interpreter may touch of them."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from kernels.api import KvPages, TensorLayout
from kernels.layout import PagedLayer
from kernels.reference import ReferenceKernels
from kernels.triton.jit import interpreted
from kernels.triton.paged_attention import paged_attention
from tests.support.paged import Sizes, make_paged

DEVICE = "cpu" if interpreted() else "cuda"

RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
HEAD_DIMS = (64, 80, 96, 128, 256)
PAGE_SIZES = (8, 16, 32, 64)
WINDOWS = (0, 1, 5, 16, 33, 64, 100)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class PagedTensors:
    """A batch of rows (first position, new tokens) over the second of two layers' pages.

    Slots that nobody sees hold NaN, and block tables -1 where a row needs no page.
    """

    qkv: torch.Tensor
    pages: KvPages
    layer: PagedLayer
    layout: TensorLayout
    scale: float

    def reference(self) -> torch.Tensor:
        """What attention gives in fp32, for the very numbers that the kernels get."""
        wide = KvPages(self.pages.keys.float().cpu(), self.pages.values.float().cpu())
        fields = ("positions", "rows", "row_starts", "first_positions", "block_tables")
        layout = replace(self.layout, **{name: getattr(self.layout, name).cpu() for name in fields})
        return ReferenceKernels().paged_attention(
            self.qkv.float().cpu(), wide, self.layer, layout, self.scale
        )

    def tolerance(self) -> float:
        """How far from the reference a result may be.

        Halves: the weights of the softmax, at most 1, and the result are rounded once each, to half
        a unit in the last place, and the interpreter cuts bf16 off instead: in all one unit of the
        largest value. Besides, fp32 sums in another order change scores up to about 30 by a few
        units in their last place, and weights by as much relative to themselves.
        """
        values = self.pages.values.nan_to_num().abs().max().item()
        rounding = 0.0 if self.qkv.dtype == torch.float32 else torch.finfo(self.qkv.dtype).eps
        return rounding * values + 2e-5


def paged_tensors(
    rows: Sequence[tuple[int, int]], sizes: Sizes, dtype: torch.dtype, seed: int = 0
) -> PagedTensors:
    paged = make_paged(rows, sizes, seed)
    tables = np.where(paged.layout.block_tables == paged.no_page, -1, paged.layout.block_tables)
    keys, values = (torch.from_numpy(pages) for pages in (paged.keys, paged.values))
    return PagedTensors(
        qkv=torch.from_numpy(paged.qkv).to(DEVICE, dtype),
        pages=KvPages(
            torch.stack([torch.full_like(keys, torch.nan), keys]).to(DEVICE, dtype),
            torch.stack([torch.full_like(values, torch.nan), values]).to(DEVICE, dtype),
        ),
        layer=PagedLayer(group=1, index=1, window=sizes.window or None),
        layout=TensorLayout.of(replace(paged.layout, block_tables=tables), DEVICE),
        scale=sizes.scale,
    )


def straddling(size: int) -> list[tuple[int, int]]:
    """Decodes and prefills, on an empty context and behind a prefix, that end around a page's."""
    prefills = [(size - 1, 2), (0, size + 1), (2 * size + 3, 9)]
    decodes = [(0, 1), (size - 2, 1), (size - 1, 1), (size, 1), (3 * size + 4, 1)]
    return [*decodes[:2], *prefills, *decodes[2:]]


def attend(batch: PagedTensors) -> torch.Tensor:
    return paged_attention(batch.qkv, batch.pages, batch.layer, batch.layout, batch.scale)


def distance(got: torch.Tensor, batch: PagedTensors) -> float:
    """How far a result is from the reference at most, as a multiple of the tolerance."""
    assert got.dtype == batch.qkv.dtype
    expected = batch.reference()
    assert torch.isfinite(expected).all()
    return (got.float().cpu() - expected).abs().max().item() / batch.tolerance()


@contextmanager
def only_arguments_touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a kernel that reads or writes outside the tensors it is launched with.

    Each argument is a span of its own: a layer of the cache is given without its neighbours. Only
    the interpreter can tell; on a GPU this does nothing.
    """
    from triton.runtime import interpreter

    spans: list[tuple[int, int]] = []
    launch = interpreter.GridExecutor.__call__
    load = interpreter.InterpreterBuilder.create_masked_load
    store = interpreter.InterpreterBuilder.create_masked_store

    def launched(self, *args, **keywords):
        given = inspect.getcallargs(self.fn, *args, **_parameters(self.fn, keywords))
        tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
        assert all(tensor.is_contiguous() for tensor in tensors)
        spans[:] = [(t.data_ptr(), t.data_ptr() + t.numel() * t.itemsize) for t in tensors]
        launch(self, *args, **keywords)

    def check(pointers, mask):
        addresses = np.broadcast_to(pointers.data, mask.data.shape)[mask.data]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        inside = np.zeros(addresses.shape, bool)
        for start, past in spans:
            inside |= (addresses >= start) & (addresses + size <= past)
        assert inside.all(), "a kernel touched memory that it was not given"

    def loaded(self, pointers, mask, *rest):
        check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def stored(self, pointers, value, mask, *rest):
        check(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(interpreter.GridExecutor, "__call__", launched)
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_load", loaded)
        patch.setattr(interpreter.InterpreterBuilder, "create_masked_store", stored)
        yield


def _parameters(function, keywords):
    return {
        name: value
        for name, value in keywords.items()
        if name in inspect.signature(function).parameters
    }
