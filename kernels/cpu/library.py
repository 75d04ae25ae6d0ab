"""Loads the native CPU kernels: the fastest library that was compiled and that this processor runs.

`EVENHAND_CPU_KERNELS=plain` in the environment forces the portable one. Nothing but ctypes and
numpy is imported, and a call into the library lets go of the interpreter's lock.
"""

import ctypes
import functools
import os
from typing import Final

from kernels.cpu.build import library_path, source_digest, variants
from kernels.cpu.structs import declare

VARIABLE: Final = "EVENHAND_CPU_KERNELS"


class KernelsUnavailableError(Exception):
    """No native library was compiled: one sentence says why and what to do."""


class StaleKernelsError(Exception):
    """The native library is not of the sources beside it, and would compute something else."""


@functools.cache
def native() -> ctypes.CDLL:
    """The library of `chosen_variant`; loaded once a process.

    Raises KernelsUnavailableError, StaleKernelsError, ValueError for a word that is no choice.
    """
    return _load(chosen_variant())


def chosen_variant() -> str:
    """`plain` or `avx2`: what the environment asks for, or the best one for this processor."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in {"auto", "plain"}:
        raise ValueError(f"{VARIABLE} is {wanted!r}, neither 'auto' nor 'plain'")
    fast = wanted == "auto" and "avx2" in variants() and _load("plain").evh_runs_avx2()
    return "avx2" if fast else "plain"


@functools.cache
def _load(variant: str) -> ctypes.CDLL:
    path = library_path(variant)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsUnavailableError(
            f"the CPU kernels are not compiled ({error}):"
            " install a C compiler and run `python -m kernels.cpu.build`"
        ) from error
    declare(library)
    if library.evh_source_digest().decode() != source_digest():
        raise StaleKernelsError(
            f"{path.name} is older than its sources: run `python -m kernels.cpu.build`"
        )
    return library
