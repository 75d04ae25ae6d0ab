"""Paged attention in Triton over the whole grid of shapes, each access to memory checked."""

import itertools
import json

import numpy as np
import pytest

from tests.support.paged import Sizes
from tests.support.paged_tensors import (
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


@pytest.mark.prove
def test_attention_equals_its_reference_for_every_shape(monkeypatch):
    """Every ratio, head size, page size and type, each with one of the windows in turn."""
    windows = itertools.cycle(WINDOWS)
    worst = dict.fromkeys(map(str, DTYPES), 0.0)
    shapes = list(itertools.product(RATIOS, HEAD_DIMS, PAGE_SIZES, DTYPES))
    # Rows that pad a tile divide zero by zero, on a GPU in silence; nothing of them is stored.
    with only_arguments_touched(monkeypatch), np.errstate(all="ignore"):
        for seed, (ratio, head_dim, page_size, dtype) in enumerate(shapes):
            sizes = Sizes(2, ratio, head_dim, page_size, next(windows))
            batch = paged_tensors(straddling(page_size), sizes, dtype, seed)
            far = distance(attend(batch), batch)
            assert far <= 1, (sizes, dtype)
            worst[str(dtype)] = max(worst[str(dtype)], round(far, 3))
    print(json.dumps({"attention_shapes": len(shapes), "worst_error_of_tolerance": worst}))
