import pytest

from engine.sim.clock import VirtualTime


def test_actions_run_in_order_of_time_then_of_adding():
    time, ran = VirtualTime(), []
    for when, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        time.at(when, lambda name=name: ran.append((time.now, name)))
    time.run()
    assert ran == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_it_stops_at_the_end_asked_for_and_can_go_on():
    time, ran = VirtualTime(), []
    time.at(1.0, lambda: time.at(time.now + 1, lambda: ran.append(time.now)))
    time.run(until=1.5)
    assert (time.now, ran) == (1.5, [])
    time.run()
    assert ran == [2.0]


def test_the_past_is_refused():
    time = VirtualTime()
    time.run(until=1.0)
    with pytest.raises(ValueError, match="too late"):
        time.at(0.5, lambda: None)
