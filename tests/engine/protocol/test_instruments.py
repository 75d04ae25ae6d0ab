"""Plain numbers: bucket edges, families, label caps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.instruments import LabelCap, Registry

BOUNDS = (0.1, 1.0, 10.0)


@given(st.lists(st.floats(min_value=-1, max_value=20) | st.sampled_from(BOUNDS)))
def test_a_histogram_counts_up_to_and_including_each_bound(values):
    child = Registry().histogram("h", "help", BOUNDS).labels()
    for value in values:
        child.observe(value)
    upper = [*BOUNDS, float("inf")]
    below = [sum(value <= bound for value in values) for bound in upper]
    assert [sum(child.counts[: index + 1]) for index in range(len(upper))] == below
    assert child.total == pytest.approx(sum(values))


def test_buckets_must_rise():
    with pytest.raises(ValueError, match="rise"):
        Registry().histogram("h", "help", (1.0, 1.0))


def test_a_name_is_declared_once():
    registry = Registry()
    registry.counter("c_total", "help")
    with pytest.raises(ValueError, match="twice"):
        registry.gauge("c_total", "help")


def test_labels_must_be_as_many_as_declared():
    family = Registry().counter("c_total", "help", ("a", "b"))
    with pytest.raises(ValueError, match="labels"):
        family.labels("only one")
    assert list(family.samples()) == []


def test_a_child_is_the_same_for_the_same_labels_until_it_is_forgotten():
    family = Registry().gauge("g", "help", ("tenant",))
    family.labels("a").set(3)
    family.labels("a").inc(-1)
    assert list(family.samples()) == [(("a",), 2)]
    family.forget("a")
    family.forget("a")
    assert list(family.samples()) == []
    assert family.labels("a").value == 0


def test_a_metric_without_labels_is_shown_before_it_is_touched():
    assert list(Registry().counter("c_total", "help").samples()) == [((), 0)]


def test_a_callback_takes_the_place_of_children():
    family = Registry().counter("c_total", "help")
    total = 1
    family.callback(lambda: [((), total)])
    assert list(family.samples()) == [((), 1)]
    total = 5
    assert list(family.samples()) == [((), 5)]


def test_a_subscriber_hears_of_earlier_and_later_families():
    registry = Registry()
    registry.counter("early_total", "help")
    heard = []
    registry.subscribe(lambda family: heard.append(family.name))
    registry.gauge("late", "help")
    assert heard == ["early_total", "late"]


@given(st.lists(st.text(max_size=2)), st.integers(0, 4))
def test_a_cap_keeps_the_first_names_and_no_more(values, limit):
    cap = LabelCap(limit)
    shown = [cap.label(value) for value in values]
    kept = list(dict.fromkeys(values))[:limit]
    assert shown == [value if value in kept else "other" for value in values]
