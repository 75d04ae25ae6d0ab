"""Reservations: all or none, closed once, and never more than the limit in any sixty seconds."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairness.bucket import SlidingWindow
from fairness.reservation import Demand, Dimension, LimitBook, Refusal, Reservation

RPM, TPM, QUEUED = Dimension.RPM, Dimension.TPM, Dimension.QUEUED


def rpm(limit: int, subject: str = "t", level: str = "tenant") -> Demand:
    return Demand(subject, RPM, 1, limit, level)


def tpm(amount: int, limit: int) -> Demand:
    return Demand("t", TPM, amount, limit, "plan")


def place(limit: int) -> Demand:
    return Demand("t", QUEUED, 1, limit, "plan")


def test_the_third_call_within_a_minute_is_refused_and_told_when_to_return() -> None:
    book = LimitBook()
    assert isinstance(book.reserve(100.0, "a", [rpm(2)]), Reservation)
    assert isinstance(book.reserve(110.0, "b", [rpm(2)]), Reservation)
    refusal = book.reserve(130.0, "c", [rpm(2)])
    assert refusal == Refusal(RPM, "tenant", 2, 0, pytest.approx(30.25))
    assert isinstance(book.reserve(159.9, "c", [rpm(2)]), Refusal)
    assert isinstance(book.reserve(130.0 + refusal.retry_after_s, "c", [rpm(2)]), Reservation)


def test_a_refusal_takes_nothing_and_names_the_limit_that_takes_longest() -> None:
    book = LimitBook()
    book.reserve(0.0, "a", [rpm(2), tpm(60, 100), place(1)])
    before = book.left(1.0, "t", {RPM: 2, TPM: 100, QUEUED: 1})
    refusal = book.reserve(1.0, "b", [rpm(2), tpm(50, 100), place(1)])
    assert (refusal.dimension, refusal.level, refusal.remaining) == (TPM, "plan", 40)
    assert refusal.retry_after_s == pytest.approx(59.25)
    assert book.left(1.0, "t", {RPM: 2, TPM: 100, QUEUED: 1}) == before


def test_what_can_never_fit_has_no_time_to_return() -> None:
    refusal = LimitBook().reserve(0.0, "a", [rpm(2), tpm(101, 100)])
    assert refusal == Refusal(TPM, "plan", 100, 100, None)


def test_a_queue_place_is_free_at_the_grant_and_tokens_only_when_settled() -> None:
    book = LimitBook()
    book.reserve(0.0, "a", [tpm(80, 100), place(1)])
    assert book.reserve(0.0, "b", [place(1)]).retry_after_s
    book.leave_queue("a")
    book.leave_queue("a")
    left = book.left(0.0, "t", {TPM: 100, QUEUED: 1})
    assert (left[TPM].remaining, left[QUEUED].remaining) == (20, 1)
    assert book.settle(5.0, "a", {TPM: 30})
    left = book.left(5.0, "t", {TPM: 100, QUEUED: 1})
    assert (left[TPM].remaining, left[QUEUED].remaining) == (70, 1)


def test_a_reservation_is_closed_exactly_once() -> None:
    book = LimitBook()
    book.reserve(0.0, "a", [rpm(5), tpm(80, 100), place(3)])
    with pytest.raises(ValueError, match="already"):
        book.reserve(0.0, "a", [rpm(5)])
    assert book.abandon(1.0, "a")
    assert not book.abandon(1.0, "a")
    assert not book.settle(1.0, "a", {TPM: 80})
    left = book.left(1.0, "t", {RPM: 5, TPM: 100, QUEUED: 3})
    assert [one.remaining for one in left.values()] == [5, 100, 3]


def test_using_more_than_reserved_counts_and_leaves_nothing() -> None:
    book = LimitBook()
    book.reserve(0.0, "a", [tpm(50, 100)])
    book.settle(10.0, "a", {TPM: 130})
    left = book.left(10.0, "t", {TPM: 100})[TPM]
    assert (left.remaining, left.reset_s) == (0, pytest.approx(60.25))


def test_a_changed_limit_judges_what_was_already_taken() -> None:
    book = LimitBook()
    for name in "abc":
        book.reserve(0.0, name, [rpm(100)])
    assert isinstance(book.reserve(1.0, "d", [rpm(2)]), Refusal)
    assert book.left(1.0, "t", {RPM: 2})[RPM].remaining == 0
    assert book.left(1.0, "t", {RPM: 4})[RPM].remaining == 1
    assert isinstance(book.reserve(1.0, "d", [rpm(4)]), Reservation)


def test_a_key_and_its_tenant_are_counted_apart() -> None:
    book = LimitBook()
    for name in "ab":
        book.reserve(0.0, name, [rpm(9), rpm(2, "key", "key")])
    assert book.reserve(0.0, "c", [rpm(9), rpm(2, "key", "key")]).level == "key"
    assert isinstance(book.reserve(0.0, "c", [rpm(9), rpm(2, "other key", "key")]), Reservation)
    assert book.left(0.0, "t", {RPM: 9})[RPM].remaining == 6


def test_quiet_subjects_are_dropped_and_busy_ones_kept() -> None:
    book = LimitBook()
    book.reserve(0.0, "open", [rpm(9, "busy"), Demand("busy", QUEUED, 1, 3, "plan")])
    book.reserve(0.0, "closed", [rpm(9, "quiet")])
    book.settle(0.0, "closed", {})
    book.reserve(500.0, "later", [rpm(9, "new")])
    assert set(book._subjects) == {"busy", "new"}
    assert book.left(500.0, "busy", {QUEUED: 3})[QUEUED].remaining == 2
    assert book.settle(501.0, "open", {})


@settings(max_examples=150)
@given(
    limit=st.integers(1, 40),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["take", "settle", "abandon"]),
            st.integers(1, 30),
            st.sampled_from([0.0, 0.1, 3.7, 20.0, 59.9, 60.3]),
        ),
        max_size=40,
    ),
)
def test_the_book_agrees_with_a_list_of_everything_taken(limit, steps) -> None:
    """The twin keeps every amount for ever and adds up the last minute, to the tick."""
    book, now = LimitBook(), 0.0
    taken: dict[str, list[list[float]]] = defaultdict(list)
    open_names: list[str] = []

    def used(at: float) -> int:
        rows = (row for rows in taken.values() for row in rows)
        return sum(amount for when, amount in rows if int(at * 4) - int(when * 4) <= 240)

    for number, (kind, amount, seconds) in enumerate(steps):
        now += seconds
        if kind == "take":
            outcome = book.reserve(now, str(number), [tpm(amount, limit)])
            assert isinstance(outcome, Reservation) == (used(now) + amount <= limit)
            if isinstance(outcome, Reservation):
                taken[str(number)].append([now, amount])
                open_names.append(str(number))
            elif outcome.retry_after_s is not None:
                assert used(now + outcome.retry_after_s) + amount <= limit
                assert used(now + outcome.retry_after_s - 0.26) + amount > limit
        elif open_names:
            name = open_names.pop(0)
            if kind == "abandon":
                book.abandon(now, name)
                taken[name] = []
            else:
                book.settle(now, name, {TPM: amount})
                [(when, reserved)] = taken[name]
                taken[name] = [[when, min(reserved, amount)], [now, max(0, amount - reserved)]]
        assert book.left(now, "t", {TPM: limit})[TPM].remaining == max(0, limit - used(now))


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=60))
def test_no_sixty_seconds_hold_more_than_the_limit(steps) -> None:
    window, now, admitted = SlidingWindow(), 0.0, []
    for seconds, amount in steps:
        now += seconds
        if window.wait_s(now, amount, 7) == 0.0:
            window.take(now, amount)
            admitted.append((now, amount))
    for start, _ in admitted:
        assert sum(amount for when, amount in admitted if start <= when < start + 60) <= 7
    assert window.used(now + window.reset_s(now)) == 0
