import json

import pytest
from typer.testing import CliRunner

from engine.sim.scenario import Scenario
from engine.sim.scenarios import SCENARIOS
from gateway.cli.main import app


def run(*arguments):
    return CliRunner().invoke(app, ["simulate", *arguments])


def test_it_lists_every_scenario_with_a_line():
    result = run("--list", "--json")
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert [entry["name"] for entry in listed] == list(SCENARIOS)
    assert all(entry["summary"] for entry in listed)
    assert {entry["name"] for entry in listed if entry["plots"]} > {"static-batching", "weights"}
    assert all(name in run("--list").stdout for name in SCENARIOS)


def test_it_prints_tables():
    result = run("warm-prompt")
    assert result.exit_code == 0
    assert "times faster" in result.stdout
    assert "one H100, Llama 3.1 8B in bf16" in result.stdout


def test_json_says_what_was_run_and_is_the_same_for_the_same_seed():
    first, again, other = (run("bursts", "--seed", seed, "--json") for seed in "778")
    found = json.loads(first.stdout)
    assert (found["scenario"], found["seed"]) == ("bursts", 7)
    assert found["tables"][0]["rows"][0]["measure"] == "output tokens/s"
    assert found["runs"]["Poisson"]["itl"]["p99"] > 0
    assert first.stdout == again.stdout
    assert json.loads(other.stdout)["runs"] != found["runs"]


def test_a_plot_is_a_png(tmp_path):
    file = tmp_path / "bursts.png"
    result = run("static-batching", "--plot", str(file))
    assert result.exit_code == 0, result.output
    assert file.read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--list"),
        (("nope",), "no scenario 'nope'; there are: static-batching, "),
        (("static-batching", "--plot", "plot.pdf"), "does not end with .png"),
        (("static-batching", "--plot", "/no/such/folder/plot.png"), "cannot write"),
        (("thrash", "--plot", "plot.png"), "thrash has no plot"),
    ],
)
def test_wrong_use_is_one_line_and_status_2_at_once(arguments, said, tmp_path, monkeypatch):
    def nothing(scenario, seed):
        pytest.fail(f"{scenario.name} ran")

    monkeypatch.setattr(Scenario, "simulate", nothing)
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["-1", "one"])
def test_a_seed_is_a_number_from_zero_on(seed):
    assert run("static-batching", "--seed", seed).exit_code == 2
