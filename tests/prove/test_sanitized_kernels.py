"""The linear layers under the address and undefined-behaviour sanitizers, over odd shapes."""

import json
import subprocess
from pathlib import Path

import pytest

from kernels.cpu.build import _VARIANTS, SOURCES, variants

DRIVER = Path(__file__).with_name("sanitized_linear.c")
FILES = ("linear*.c", "pack.c", "quantize.c", "embed.c")
FLAGS = ("-std=gnu11", "-O1", "-g1", "-ffp-contract=fast", "-Wno-psabi")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.prove
@pytest.mark.parametrize("variant", variants())
def test_linear_layers_do_nothing_undefined(tmp_path, variant):
    sources = [str(path) for pattern in FILES for path in sorted(SOURCES.glob(pattern))]
    program = tmp_path / "sanitized"
    command = ["cc", *FLAGS, *SANITIZERS, *_VARIANTS[variant], f"-I{SOURCES}", str(DRIVER)]
    subprocess.run([*command, *sources, "-lm", "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(json.dumps({"claim": "linear layers under sanitizers", "products": int(done.stdout)}))
