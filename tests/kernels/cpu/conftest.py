"""The native kernels as ctypes sees them, each compiled variant that this processor runs."""

import ctypes

import pytest

from kernels.cpu import library
from kernels.cpu.build import variants


@pytest.fixture(scope="session", params=variants())
def native(request) -> ctypes.CDLL:
    if request.param == "avx2" and not library._load("plain").evh_runs_avx2():
        pytest.skip("this processor has no AVX2")
    return library._load(request.param)
