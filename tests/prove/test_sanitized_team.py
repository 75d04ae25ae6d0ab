"""The thread team under the thread sanitizer: sleepers and latecomers see every phase in order."""

import json
import subprocess
from pathlib import Path

import pytest

from kernels.cpu.build import SOURCES

DRIVER = Path(__file__).with_name("sanitized_team.c")
FLAGS = ("-std=gnu11", "-O1", "-g1", "-pthread", "-fsanitize=thread")


@pytest.mark.prove
def test_a_team_has_no_data_race(tmp_path):
    program = tmp_path / "sanitized"
    sources = [str(DRIVER), str(SOURCES / "team.c")]
    subprocess.run(
        ["cc", *FLAGS, f"-I{SOURCES}", *sources, "-o", str(program)],
        check=True,
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(json.dumps({"claim": "a thread team under sanitizers", "phases": int(done.stdout)}))
