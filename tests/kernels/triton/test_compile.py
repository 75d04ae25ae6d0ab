"""Every registered kernel compiles for sm_80 and sm_90, and fits, where no GPU is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.triton.ahead import SHARED_LIMITS, Compiled, table
from kernels.triton.registry import signatures

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TRITON_")}
    command = [sys.executable, "-m", "kernels.triton.ahead", "--json", "--processes", "2"]
    # What is wrong with a kernel, which the exit status tells, the tests say better.
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, done.stderr
    return [Compiled(**kernel) for kernel in json.loads(done.stdout)]


@pytest.mark.timeout(900)  # about a minute on two idle cores
def test_every_kernel_compiles_for_every_gpu(compiled, capsys):
    with capsys.disabled():
        print("\n" + table(compiled))
    expected = [(s.name, capability) for capability in SHARED_LIMITS for s in signatures()]
    assert [(kernel.name, kernel.capability) for kernel in compiled] == expected
    assert all(kernel.registers > 0 for kernel in compiled)


@pytest.mark.timeout(900)
def test_no_kernel_that_decodes_spills(compiled):
    assert [kernel for kernel in compiled if kernel.spilled and not kernel.may_spill] == []
    may = {kernel.name.split()[0] for kernel in compiled if kernel.may_spill}
    assert may <= {"prefill_attention"}


@pytest.mark.timeout(900)
def test_every_kernel_fits_into_shared_memory(compiled):
    assert [k for k in compiled if k.shared > SHARED_LIMITS[k.capability]] == []
    assert [k.fault for k in compiled if k.fault] == []


def test_names_are_unique():
    names = [signature.name for signature in signatures()]
    assert len(set(names)) == len(names)


def test_what_is_wrong_with_a_kernel_is_said():
    kernel = Compiled("k", 80, 4, 255, 163 << 10, 0, may_spill=False)
    assert kernel.fault is None
    assert "shared" in Compiled("k", 80, 4, 255, (163 << 10) + 1, 0, may_spill=False).fault
    assert "spills 4" in Compiled("k", 80, 4, 255, 0, 4, may_spill=False).fault
    assert Compiled("k", 90, 4, 255, 164 << 10, 4, may_spill=True).fault is None
