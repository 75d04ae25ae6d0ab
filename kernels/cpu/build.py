"""Compiles the native CPU kernels: every C file of `kernels/cpu/native`, once per instruction set.

Run by the package build and by `make native`; needs a C compiler and nothing else. The library
carries a digest of its sources, so that one older than the files beside it is noticed.
"""

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_FLAGS += ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
_WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi")
_VARIANTS = {
    "plain": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}


class BuildError(Exception):
    """The kernels could not be compiled: the compiler's own words."""


def variants() -> tuple[str, ...]:
    """The instruction sets that this kind of machine has libraries for, slowest first."""
    on_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    return ("plain", "avx2") if on_x86 else ("plain",)


def library_path(variant: str) -> Path:
    """Where the library of one instruction set is, or would be."""
    return SOURCES / f"libevenhand-{variant}.so"


def source_digest() -> str:
    """SHA-256 of all sources and of how they are compiled."""
    total = hashlib.sha256(repr((_FLAGS, _VARIANTS)).encode())
    for path in _files("*.[ch]"):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def build() -> None:
    """Compile every variant; raises BuildError. A library is replaced whole or not at all."""
    for variant in variants():
        target = library_path(variant)
        partial = target.with_suffix(f".{os.getpid()}.tmp")
        command = [os.environ.get("CC", "cc"), *_FLAGS, *_WARNINGS, *_VARIANTS[variant]]
        command += [f'-DEVH_SOURCE_DIGEST="{source_digest()}"', "-o", str(partial)]
        try:
            subprocess.run(  # noqa: S603 - our own sources, the user's own compiler
                [*command, *map(str, _files("*.c")), "-lm"],
                check=True,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as error:
            raise BuildError(f"no C compiler: {error}") from error
        except subprocess.CalledProcessError as error:
            raise BuildError(error.stderr) from error
        partial.replace(target)


def _files(pattern: str) -> list[Path]:
    return sorted(SOURCES.glob(pattern))


if __name__ == "__main__":
    try:
        build()
    except BuildError as error:
        sys.exit(f"cannot compile the CPU kernels: {error}")
