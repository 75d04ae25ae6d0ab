"""Each history that broke an earlier statement of the bound keeps the present one."""

import pytest

from tests.fairness.histories import HISTORIES, watched


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_the_promises_hold_in(history) -> None:
    watched(history)
