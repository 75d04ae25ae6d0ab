"""How CPU kernels are compiled: numba, released GIL, machine code cached on disk when possible."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

# Results must not depend on NaN or infinity never occurring, so `nnan` and `ninf` stay out.
FAST_MATH = {"contract", "reassoc", "nsz", "arcp"}

config: Any = numba.config  # its settings are made at import time, unseen by type checkers
config.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(signature: str, *, parallel: bool = False) -> Callable[[_F], _F]:
    """Compile now, for exactly `signature`: a first request never waits for the compiler.

    A cache directory that cannot be written only costs compiling again in the next process.
    """

    def compile_kernel(function: _F) -> _F:
        options: dict[str, Any] = {"nogil": True, "fastmath": FAST_MATH, "parallel": parallel}
        try:
            return cast("_F", numba.njit(signature, cache=True, **options)(function))
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return cast("_F", numba.njit(signature, **options)(function))

    return compile_kernel


def inlined(function: _F) -> _F:
    """A helper that is part of each kernel calling it, so that constant sizes reach its loops."""
    return cast("_F", numba.njit(fastmath=FAST_MATH, forceinline=True)(function))


def set_kernel_threads(threads: int) -> None:
    """How many threads parallel kernels use from now on, in this thread; capped by the machine."""
    numba.set_num_threads(min(threads, int(config.NUMBA_NUM_THREADS)))
