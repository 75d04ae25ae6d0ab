"""The library that is loaded fits the processor and the sources, and its structs are C's."""

import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu import library, structs
from kernels.cpu.build import SOURCES, library_path, variants
from kernels.cpu.library import KernelsUnavailableError, StaleKernelsError, chosen_variant

ROOT = Path(library.__file__).parents[2]


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A folder that the libraries are looked for in."""
    monkeypatch.setattr(library, "library_path", lambda variant: library_path(variant, tmp_path))
    return tmp_path


def test_the_environment_may_ask_for_the_plain_one(monkeypatch):
    monkeypatch.setenv("EVENHAND_CPU_KERNELS", "plain")
    assert chosen_variant() == "plain"
    monkeypatch.setenv("EVENHAND_CPU_KERNELS", "auto")
    best = chosen_variant()
    monkeypatch.delenv("EVENHAND_CPU_KERNELS")
    assert chosen_variant() == best
    assert best in variants()


def test_other_words_are_refused(monkeypatch):
    monkeypatch.setenv("EVENHAND_CPU_KERNELS", "avx512")
    with pytest.raises(ValueError, match=r"EVENHAND_CPU_KERNELS is 'avx512', neither"):
        chosen_variant()


@pytest.mark.skipif("avx2" not in variants(), reason="not x86")
@pytest.mark.parametrize(("runs", "variant"), [(1, "avx2"), (0, "plain")])
def test_the_processor_decides(monkeypatch, runs, variant):
    monkeypatch.delenv("EVENHAND_CPU_KERNELS", raising=False)

    class Plain:
        @staticmethod
        def evh_runs_avx2():
            return runs

    monkeypatch.setattr(library, "_load", lambda name: Plain)
    assert chosen_variant() == variant


def test_what_the_processor_can_is_what_the_system_says():
    cpuinfo = Path("/proc/cpuinfo")
    if "avx2" not in variants() or not cpuinfo.exists():
        pytest.skip("no way to ask the system")
    flags = set(cpuinfo.read_text().split())
    expected = {"avx2", "fma", "f16c"} <= flags
    assert bool(library._load("plain").evh_runs_avx2()) == expected


def test_a_missing_library_says_what_to_do(elsewhere):
    with pytest.raises(KernelsUnavailableError, match=r"run `python -m kernels\.cpu\.build`"):
        library._load.__wrapped__("plain")


def test_a_library_of_other_sources_is_refused(monkeypatch):
    monkeypatch.setattr(library, "source_digest", lambda: "0" * 64)
    with pytest.raises(StaleKernelsError, match="older than its sources"):
        library._load.__wrapped__("plain")


def test_loading_it_imports_neither_torch_nor_numba():
    code = (
        "import sys; from kernels.cpu.library import native; native();"
        "sys.exit(bool({'torch', 'numba', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_every_function_of_the_headers_is_declared():
    declared = set()
    for header in SOURCES.glob("*.h"):
        text = header.read_text()
        if "#pragma GCC visibility push(default)" not in text:
            continue
        exported = text.split("visibility push(default)")[1].split("visibility pop")[0]
        words = exported.replace("*", " ").replace("(", " (").split()
        declared |= {
            word
            for word, after in itertools.pairwise(words)
            if word.startswith("evh_") and after.startswith("(")
        }
    assert declared == set(structs.FUNCTIONS)


STRUCTS = {
    "evh_matrix": structs.Matrix,
    "evh_activations": structs.Activations,
    "evh_batch": structs.Batch,
    "evh_pages": structs.Pages,
    "evh_buffer": structs.Buffer,
    "evh_embed_op": structs.EmbedOp,
    "evh_angles_op": structs.AnglesOp,
    "evh_norm_op": structs.NormOp,
    "evh_quantize_op": structs.QuantizeOp,
    "evh_linear_op": structs.LinearOp,
    "evh_heads_op": structs.HeadsOp,
    "evh_attention_op": structs.AttentionOp,
    "evh_gate_op": structs.GateOp,
    "evh_op": structs.Op,
    "evh_program": structs.Program,
    "evh_job": structs.Job,
}
CONSTANTS = {
    "EVH_PANEL": structs.PANEL,
    "EVH_TILE": structs.TILE,
    "EVH_MAX_PARTS": structs.MAX_PARTS,
    "EVH_JOB_DONE": structs.JOB_DONE,
    "EVH_F32": structs.F32,
    "EVH_F16": structs.F16,
    "EVH_BF16": structs.BF16,
    "EVH_W4": structs.W4,
    "EVH_W8": structs.W8,
    "EVH_SILU": structs.ACTIVATIONS["silu"],
    "EVH_GELU_TANH": structs.ACTIVATIONS["gelu_tanh"],
    **{f"EVH_OP_{name.upper()}": n for n, (name, _) in enumerate(structs.AnyOp._fields_)},
}


def test_structs_and_constants_are_those_of_the_headers(tmp_path):
    """A compiler prints where each field is; a field too few would make the sizes differ."""
    expected, prints = [], []

    def compare(expression, value):
        prints.append(f'printf("%lld\\n", (long long)({expression}));')
        expected.append((expression, value))

    for name, struct in STRUCTS.items():
        compare(f"sizeof({name})", ctypes.sizeof(struct))
        for field, kind in struct._fields_:
            if field != "any":
                compare(f"offsetof({name}, {field})", getattr(struct, field).offset)
                compare(f"sizeof((({name} *)0)->{field})", ctypes.sizeof(kind))
    for name, _ in structs.AnyOp._fields_:
        compare(f"offsetof(evh_op, {name})", structs.Op.any.offset)
    for name, value in CONSTANTS.items():
        compare(name, value)
    source = tmp_path / "layout.c"
    body = "\n".join(prints)
    source.write_text(
        '#include "step.h"\n#include <stddef.h>\n#include <stdio.h>\n'
        f"int main(void) {{\n{body}\nreturn 0;\n}}\n"
    )
    program = tmp_path / "layout"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-I", str(SOURCES), str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    found = list(map(int, printed.split()))
    assert list(zip([name for name, _ in expected], found, strict=True)) == expected


def test_only_contiguous_arrays_of_the_right_type_have_an_address():
    array = np.zeros((4, 6), np.float32)
    assert structs.address(array, np.float32) == array.ctypes.data
    assert structs.address(None) is None
    for wrong in (array[:, ::2], array.astype(np.float64)):
        with pytest.raises(ValueError, match="contiguous array"):
            structs.address(wrong, np.float32)
