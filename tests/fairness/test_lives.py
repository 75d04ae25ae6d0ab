"""Random lives of a pool keep every promise; `make prove` runs a million grants of them."""

import pytest

from fairness.policy import FcfsPolicy
from tests.fairness import mutants
from tests.fairness.checker import BrokenPromiseError
from tests.fairness.lives import FAIR, live, many

SEEDS = range(14)
OCCASIONS = (
    *("Granted", "Pinned", "Dispatched", "Passed", "Missed", "Urgent", "Headed", "Lifted"),
    *("Blocked", "Unblocked", "Expired", "Refused", "Forgotten", "Requeued", "NotStarted"),
)


def test_no_promise_is_broken_in_any_life_and_each_has_its_occasion() -> None:
    lives = many(SEEDS, 150)
    assert all(ratio <= 1 for ratio in lives.ratios.values()), lives.ratios
    assert all(lives.occasions[what] for what in OCCASIONS), lives.occasions


def test_first_come_first_served_breaks_every_bound_on_the_same_pools() -> None:
    lives = many(SEEDS[:8], 150, FcfsPolicy)
    assert all(lives.ratios[what] > 1 for what in FAIR), lives.ratios


def test_what_breaks_a_promise_is_shrunk_to_a_short_history(monkeypatch) -> None:
    mutants.nobody_passes(monkeypatch)
    with pytest.raises(BrokenPromiseError) as broken:
        live(2, 1000)
    [note] = broken.value.__notes__
    assert note.count("\n") < 20
    assert "Enqueued" in note
