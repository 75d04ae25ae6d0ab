"""`make gpu-check` where no GPU is: its fastest section, and what it says of the others' faults."""

import json

import pytest
import torch

from benchmarks import gpu_check, gpu_section
from kernels.triton import registry

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is for the check itself")


def ended(monkeypatch, capsys, *arguments):
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # which the check sets itself
    with pytest.raises(SystemExit) as exit_:
        gpu_check.main(list(arguments))
    out = capsys.readouterr().out
    return exit_.value.code, out, json.loads(out.splitlines()[-1])


def test_speed_is_measured_over_a_measured_copy_and_product(monkeypatch, capsys):
    status, out, result = ended(monkeypatch, capsys, "speed")
    assert status == 0
    assert "NO GPU" in out
    (section,) = result["sections"]
    figures = {figure["name"]: figure for figure in section["figures"]}
    assert figures["copy of a tensor (ceiling)"]["of ceiling"] == 1
    assert figures["product of matrices (ceiling)"]["of ceiling"] == 1
    assert all(figure["of ceiling"] > 0 for figure in figures.values())
    measured = " ".join(figures)
    words = {"sampling": "top-p"}
    for module in registry._MODULES:
        name = module.__name__.rpartition(".")[2]
        assert words.get(name, name.replace("_attention", " attention")) in measured


def found(monkeypatch, capsys, compute, budget_s=5.0):
    monkeypatch.setattr(gpu_check, "section_runs", lambda: {"kernels": (budget_s, compute)})
    return ended(monkeypatch, capsys)


def test_one_mismatch_fails_the_whole(monkeypatch, capsys):
    def compute(section, gpu):
        assert not gpu
        section.check("right", None)
        section.check("norm", "differs by 3")

    status, out, result = found(monkeypatch, capsys, compute)
    assert status == 1
    assert "kernels: WRONG, 2 checks, 1 wrong, 0 skipped" in out
    assert result["sections"][0]["wrong"] == ["norm: differs by 3"]


def test_what_a_budget_does_not_reach_is_told_and_is_no_fault(monkeypatch, capsys):
    def compute(section, gpu):
        assert not section.in_time
        section.skip("gates", "no time is left")

    status, out, result = found(monkeypatch, capsys, compute, budget_s=0.0)
    assert status == 0
    assert "SKIPPED gates: no time is left" in out
    assert result["sections"][0]["skipped"] == ["gates: no time is left"]


def test_all_budgets_together_are_eight_minutes_at_most():
    assert sum(budget_s for budget_s, _ in gpu_check.section_runs().values()) <= 8 * 60


def test_figures_are_shown_in_columns():
    section = gpu_section.Section("speed", 1.0)
    section.figures.append({"name": "copy", "GB/s": 4321.0, "of ceiling": 1.0})
    assert "copy" in gpu_section.table(section)
    assert "GB/s 4.32e+03" in gpu_section.table(section)
