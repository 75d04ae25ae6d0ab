import pytest
from numpy.random import default_rng

from engine.sim.plot import save
from engine.sim.result import Line, Plot, Result, Table, run_table
from engine.sim.scenario import Scenario
from engine.sim.scenarios import SCENARIOS


def plot(name):
    return Plot(name, "seconds", "tokens", (Line("line", [0, 1, 2], [3, 1, 2]),))


def test_plots_are_drawn_below_each_other(tmp_path):
    sizes = []
    for count in (1, 2):
        file = tmp_path / f"{count}.png"
        save(Result((), tuple(plot(str(number)) for number in range(count))), file)
        header = file.read_bytes()[:24]
        assert header.startswith(b"\x89PNG\r\n")
        sizes.append((int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")))
    assert sizes == [(960, 480), (960, 960)]


def test_a_scenario_has_plots_just_when_it_says_so():
    drawn, tables = Result((), (plot("one"),)), Result(())
    assert Scenario("drawn", "", lambda _: drawn, plots=True).simulate(0) == drawn
    assert Scenario("tables", "", lambda _: tables).simulate(0) == tables
    for wrong in (
        Scenario("wrong", "", lambda _: tables, plots=True),
        Scenario("wrong", "", lambda _: drawn),
    ):
        with pytest.raises(ValueError, match="'wrong' does not do as it says"):
            wrong.simulate(0)


def test_a_table_has_a_cell_per_column():
    with pytest.raises(ValueError, match="cell per column"):
        Table("wrong", ("a", "b"), ((1,),))
    assert Table("right", ("a", "b"), ((1, 2.5),)).records() == [{"a": 1, "b": 2.5}]


def test_a_scenario_draws_only_from_its_seed():
    dice = Scenario(
        "dice", "", lambda rng: Result((Table("", ("n",), ((int(rng.integers(99)),),)),))
    )
    assert dice.simulate(3) == dice.simulate(3)
    assert dice.simulate(3) != dice.simulate(4)
    assert dice.simulate(3) == dice.run(default_rng(3))


def test_a_run_table_has_a_column_per_run():
    runs = SCENARIOS["bursts"].simulate(0).reports
    table = run_table("runs", runs)
    assert table.columns == ("measure", *runs)
