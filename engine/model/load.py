"""Loads a model that `engine.model.store` resolved: a GGUF file or a safetensors folder.

On a CPU by the native kernels, without torch. Where they could not be compiled torch computes
instead, slowly, and the log says so.
"""

import logging
from pathlib import Path
from typing import Literal

from engine.model.decoder import Decoder
from engine.model.native import NativeDecoder, Quantization
from engine.model.weights import GgufWeights, SafetensorsWeights, Weights
from kernels.cpu.library import KernelsUnavailableError
from kernels.cpu.team import available_cores

log = logging.getLogger(__name__)

Device = Literal["cpu"]
_DTYPES = ("auto", "float32")


def load_model(
    path: Path,
    dtype: str = "auto",
    threads: int | None = None,
    quantization: Quantization = "none",
    device: Device = "cpu",
) -> Decoder:
    """Read and pack the weights for a device; `threads` defaults to the cores this process has.

    Raises ModelFileError for a file we cannot serve, ValueError for what the device cannot do.
    """
    if device != "cpu":
        raise ValueError(f"device {device!r} is not supported; supported: cpu")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported on the CPU; supported: float32")
    weights = open_weights(path)
    threads = threads or available_cores()
    try:
        return NativeDecoder(weights, threads, quantization)
    except KernelsUnavailableError as error:
        if quantization != "none":
            raise ValueError(f"quantization {quantization!r} is not possible: {error}") from error
        log.warning(
            "SLOW: torch computes instead of the native kernels, many times slower: %s", error
        )
        return _torch_decoder(weights, threads)


def open_weights(path: Path) -> Weights:
    """The weights at `path`, by what it is: a folder or a file; raises ModelFileError."""
    return SafetensorsWeights(path) if path.is_dir() else GgufWeights(path)


def _torch_decoder(weights: Weights, threads: int) -> Decoder:
    import torch

    from engine.model.torch_decoder import TorchDecoder
    from kernels.reference import ReferenceKernels

    torch.set_num_threads(threads)
    return TorchDecoder(weights, ReferenceKernels())
