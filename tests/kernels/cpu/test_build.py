"""Compiling the native kernels: all or nothing, noticed when stale, and part of the package."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import hatch_build
from kernels.cpu import build, library
from kernels.cpu.build import BuildError, NoCompilerError, library_path, variants

ROOT = Path(build.__file__).parents[2]


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """A folder of sources of its own, and its libraries' paths."""
    sources = tmp_path / "native"
    shutil.copytree(build.SOURCES, sources, ignore=shutil.ignore_patterns("*.so", ".build-*"))
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(library, "library_path", lambda variant: library_path(variant, sources))
    return sources


def compiler(tmp_path, script):
    """What `CC` names: a script in place of a compiler."""
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


WRITES_ITS_ARGUMENTS = 'all="$*"; while [ "$1" != -o ]; do shift; done; echo "$all" > "$2"'


def test_every_file_is_compiled_for_every_variant_without_a_warning(tmp_path):
    assert build.build(tmp_path, ("-O1",)) == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        library_path(variant).name for variant in variants()
    )


def test_all_libraries_are_replaced_or_none(copied, monkeypatch, tmp_path):
    for variant in variants():
        library_path(variant, copied).write_text("old")
    failing = compiler(tmp_path, "case $* in *team.c*) echo no luck >&2; exit 1;; esac")
    monkeypatch.setenv("CC", failing)
    with pytest.raises(BuildError, match="no luck"):
        build.build(copied)
    assert {library_path(variant, copied).read_text() for variant in variants()} == {"old"}
    assert not list(copied.glob(".build-*"))
    monkeypatch.setenv("CC", compiler(tmp_path, WRITES_ITS_ARGUMENTS))
    build.build(copied)
    assert all("-shared" in library_path(variant, copied).read_text() for variant in variants())


def test_the_plain_library_is_the_newest(copied, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", compiler(tmp_path, WRITES_ITS_ARGUMENTS))
    replaced = []
    original = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, to: replaced.append(to.name) or original(self, to)
    )
    build.build(copied)
    assert replaced[-1] == "libevenhand-plain.so"


def test_no_compiler_is_said_so(copied, monkeypatch):
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.raises(NoCompilerError, match="there is no C compiler"):
        build.build(copied)


def test_a_compiler_may_be_several_words(copied, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", f"{compiler(tmp_path, WRITES_ITS_ARGUMENTS)} --careful")
    build.build(copied)
    assert "--careful" in library_path("plain", copied).read_text()


@pytest.mark.parametrize("name", ["team.c", "kernels.h"])
def test_the_digest_follows_every_source(copied, name):
    before = build.source_digest()
    path = copied / name
    path.write_text(path.read_text() + "\n")
    assert build.source_digest() != before


class Said(SimpleNamespace):
    def display_warning(self, message):
        self.warnings.append(message)


def initialize(monkeypatch, tmp_path, version, cc):
    monkeypatch.setenv("CC", cc)
    folder = tmp_path / "root" / "kernels" / "cpu"
    shutil.copytree(
        ROOT / "kernels" / "cpu", folder, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    said, data = Said(warnings=[]), {"artifacts": [], "pure_python": True}
    hook = hatch_build.NativeKernels(str(tmp_path / "root"), {}, None, None, "", "wheel", said)
    hook.initialize(version, data)
    return said.warnings, data, list((folder / "native").glob("*.so"))


def test_a_wheel_holds_the_libraries_and_is_for_one_platform(monkeypatch, tmp_path):
    cc = compiler(tmp_path, WRITES_ITS_ARGUMENTS)
    warnings, data, built = initialize(monkeypatch, tmp_path, "standard", cc)
    assert not warnings
    assert len(built) == len(variants())
    assert data["artifacts"] == ["kernels/cpu/native/*.so"]
    assert data["tag"].startswith("py3-none-")
    assert not data["tag"].endswith("any")
    assert not data["pure_python"]


def test_an_editable_install_compiles_in_place(monkeypatch, tmp_path):
    cc = compiler(tmp_path, WRITES_ITS_ARGUMENTS)
    _, data, built = initialize(monkeypatch, tmp_path, "editable", cc)
    assert len(built) == len(variants())
    assert data == {"artifacts": [], "pure_python": True}


def test_without_a_compiler_the_package_is_built_with_a_warning(monkeypatch, tmp_path):
    warnings, data, built = initialize(monkeypatch, tmp_path, "standard", "/no/such/compiler")
    assert "engines will be slow" in warnings[0]
    assert not built
    assert data == {"artifacts": [], "pure_python": True}


def test_sources_that_do_not_compile_fail_the_package(monkeypatch, tmp_path):
    cc = compiler(tmp_path, "echo error: expected a semicolon >&2; exit 1")
    with pytest.raises(Exception, match="expected a semicolon"):
        initialize(monkeypatch, tmp_path, "standard", cc)


def test_the_kernels_are_built_where_make_looks_for_them():
    makefile = (ROOT / "Makefile").read_text()
    assert f"NATIVE := {library_path('plain').relative_to(ROOT)}" in makefile


def test_the_module_is_a_command(tmp_path):
    environment = {**os.environ, "CC": "/no/such/compiler"}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.cpu.build"],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "cannot compile the CPU kernels: there is no C compiler" in done.stderr
