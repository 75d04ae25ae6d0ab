"""No kernel leaves its arrays or does what C leaves undefined, whatever the shapes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import build, library

KERNELS = ("angles", "attention", "gate", "heads", "norm")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0")


@pytest.mark.parametrize("variant", build.variants())
def test_kernels_have_nothing_for_sanitizers_to_find(variant, tmp_path):
    if variant == "avx2" and not library._load("plain").evh_runs_avx2():
        pytest.skip("this processor has no AVX2")
    runtimes = [runtime(name) for name in ("libasan.so", "libubsan.so")]
    sources = [str(build.SOURCES / f"{name}.c") for name in KERNELS]
    flags = (*build._FLAGS, *build._VARIANTS[variant], *SANITIZERS)
    path = tmp_path / "kernels.so"
    build._run_compiler("-shared", *flags, *sources, "-o", str(path), "-lm")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.sanitized", str(path)],
        env=os.environ | {"LD_PRELOAD": ":".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def runtime(name: str) -> str:
    """Where the compiler has a sanitizer's library; Python must load it first."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    path = subprocess.check_output([*compiler, f"-print-file-name={name}"], text=True).strip()
    if not Path(path).is_absolute():
        pytest.skip(f"the compiler has no {name}")
    return path
