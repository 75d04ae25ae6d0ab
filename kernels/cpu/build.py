"""Compiles the native CPU kernels: every C file of `kernels/cpu/native`, once per instruction set.

Run by the package build and by `make native`; needs a C compiler (`CC`, else `cc`) and nothing
else. A library carries a digest of its sources, so that one older than the files beside it is
noticed when it is loaded.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
_FLAGS = (
    *("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
    *("-Wall", "-Wextra", "-Wno-psabi"),
)
_VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
}


class BuildError(Exception):
    """The kernels could not be compiled: the compiler's own words."""


class NoCompilerError(BuildError):
    """There is no C compiler."""


def variants() -> tuple[str, ...]:
    """The instruction sets that this kind of machine has libraries for, slowest first."""
    on_x86 = platform.machine().lower() in {"x86_64", "amd64"}
    return ("plain", "avx2") if on_x86 else ("plain",)


def library_path(variant: str, folder: Path = SOURCES) -> Path:
    """Where the library of one instruction set is, or would be."""
    return folder / f"libevenhand-{variant}.so"


def source_digest() -> str:
    """SHA-256 of all sources and of how they are compiled."""
    total = hashlib.sha256(repr((_FLAGS, _VARIANTS)).encode())
    for path in _files("*.[ch]"):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def build(folder: Path = SOURCES, extra: tuple[str, ...] = ()) -> str:
    """Compile every variant into `folder`; what the compiler warned of. Raises BuildError.

    All libraries are replaced or none is, the plain one last: if it is newer than the sources, all
    of them are. `extra` are flags for the compiler.
    """
    # Before anything is read for compiling: a source may change meanwhile.
    flags = (*extra, f'-DEVH_SOURCE_DIGEST="{source_digest()}"')
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
        jobs = [(variant, source) for variant in variants() for source in _files("*.c")]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(pool.map(lambda job: _compile(job[0], job[1], Path(work), flags), jobs))
        said += [_link(variant, Path(work)) for variant in variants()]
        for variant in reversed(variants()):
            library_path(variant, Path(work)).replace(library_path(variant, folder))
    return "".join(said)


def _compile(variant: str, source: Path, work: Path, extra: tuple[str, ...]) -> str:
    target = work / f"{source.stem}.{variant}.o"
    flags = (*_FLAGS, *_VARIANTS[variant], *extra)
    return _run_compiler(*flags, "-c", str(source), "-o", str(target))


def _link(variant: str, work: Path) -> str:
    objects = map(str, sorted(work.glob(f"*.{variant}.o")))
    target = library_path(variant, work)
    return _run_compiler("-shared", "-pthread", *objects, "-o", str(target), "-lm")


def _run_compiler(*arguments: str) -> str:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    try:
        done = subprocess.run(  # noqa: S603 - our own sources, the user's own compiler
            [*compiler, *arguments], check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise NoCompilerError(f"there is no C compiler: {error}") from error
    except subprocess.CalledProcessError as error:
        raise BuildError(error.stderr) from error
    return done.stderr


def _files(pattern: str) -> list[Path]:
    return sorted(SOURCES.glob(pattern))


if __name__ == "__main__":
    try:
        sys.stderr.write(build())
    except BuildError as error:
        sys.exit(f"cannot compile the CPU kernels: {error}")
