"""Kernels run in Triton's interpreter here (see the tests' own conftest), on numpy."""

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _infinities_are_quiet() -> Iterator[None]:
    """As on a GPU, where no arithmetic warns."""
    with np.errstate(all="ignore"):
        yield
