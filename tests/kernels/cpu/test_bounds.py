"""No linear layer touches memory past the end of an array."""

import subprocess
import sys

import pytest

from kernels.cpu.build import variants


@pytest.mark.parametrize("variant", variants())
def test_linear_layers_stay_within_their_arrays(variant):
    command = [sys.executable, "-m", "tests.support.guarded", variant]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
