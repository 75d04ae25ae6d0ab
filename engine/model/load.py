"""Loads a model that `engine.model.store` resolved: a GGUF file or a safetensors folder.

On a CPU by the native kernels, without torch. Where they could not be compiled torch computes
instead, slowly, and the log says so. On a GPU by Triton's.
"""

import importlib.util
import logging
from pathlib import Path
from typing import Literal

from engine.model.decoder import Decoder
from engine.model.native import NativeDecoder, Quantization, require_kernels
from engine.model.weights import GgufWeights, SafetensorsWeights, Weights
from kernels.cpu.library import KernelsUnavailableError
from kernels.cpu.team import default_threads

log = logging.getLogger(__name__)

Device = Literal["cpu", "cuda"]
DataType = Literal["auto", "float32", "float16", "bfloat16"]
"""Of activations, keys and values; on a GPU also of weights."""


def load_model(
    path: Path,
    dtype: DataType = "auto",
    threads: int | None = None,
    quantization: Quantization = "none",
    device: Device = "cpu",
) -> Decoder:
    """Read and pack the weights for a device; `threads` defaults to `default_threads()`.

    Raises ModelFileError for a file we cannot serve, ValueError for what the device cannot do.
    """
    require_device(device, dtype, quantization)
    if device == "cuda":
        return _gpu_decoder(path, dtype)
    weights = open_weights(path)
    threads = threads or default_threads()
    try:
        return NativeDecoder(weights, threads, quantization)
    except KernelsUnavailableError as error:
        log.warning(
            "SLOW: torch computes instead of the native kernels, many times slower: %s", error
        )
        return _torch_decoder(weights, threads)


def require_device(device: Device, dtype: DataType, quantization: Quantization) -> None:
    """Raise ValueError where the device that is here cannot compute so, and say why."""
    if device == "cuda":
        _require_gpu(quantization)
    elif dtype not in {"auto", "float32"}:
        raise ValueError(f"dtype {dtype!r} is not supported on the CPU; supported: float32")
    elif quantization != "none":
        _require_kernels(quantization)


def open_weights(path: Path) -> Weights:
    """The weights at `path`, by what it is: a folder or a file; raises ModelFileError."""
    return SafetensorsWeights(path) if path.is_dir() else GgufWeights(path)


def _require_gpu(quantization: Quantization) -> None:
    for library in ("torch", "triton"):
        if importlib.util.find_spec(library) is None:
            raise ValueError(f"device 'cuda' needs {library}, which is not installed")
    if quantization != "none":
        raise ValueError(f"quantization {quantization!r} is for device 'cpu' only")
    from engine.model.gpu_decoder import require_gpu

    require_gpu()


def _require_kernels(quantization: Quantization) -> None:
    try:
        require_kernels(quantization)
    except KernelsUnavailableError as error:
        raise ValueError(f"quantization {quantization!r} is not possible: {error}") from error


def _gpu_decoder(path: Path, dtype: DataType) -> Decoder:
    from engine.model.gpu_decoder import GpuDecoder

    return GpuDecoder(open_weights(path), dtype)


def _torch_decoder(weights: Weights, threads: int) -> Decoder:
    import torch

    from engine.model.torch_decoder import TorchDecoder
    from kernels.reference import ReferenceKernels

    torch.set_num_threads(threads)
    return TorchDecoder(weights, ReferenceKernels())
