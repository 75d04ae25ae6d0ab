"""Loads a model that `engine.model.store` resolved: a GGUF file or a safetensors folder."""

import os
from pathlib import Path

import torch

from engine.model.torch_decoder import TorchDecoder
from engine.model.weights import GgufWeights, SafetensorsWeights, Weights
from kernels.cpu.ops import CpuKernels

_DTYPES = ("auto", "float32")


def load_model(path: Path, dtype: str = "auto", threads: int | None = None) -> TorchDecoder:
    """Read and pre-pack the weights for the CPU; `threads` defaults to the processor's cores.

    Raises ModelFileError for a file we cannot serve, ValueError for another dtype than float32.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported on the CPU; supported: float32")
    kernels = CpuKernels(threads or available_cores())
    with torch.inference_mode():
        return TorchDecoder(open_weights(path), kernels)


def open_weights(path: Path) -> Weights:
    """The weights at `path`, by what it is: a folder or a file; raises ModelFileError."""
    return SafetensorsWeights(path) if path.is_dir() else GgufWeights(path)


def available_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
