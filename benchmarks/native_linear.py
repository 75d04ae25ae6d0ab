"""How fast the native linear layers are on one thread: JSON for every shape of SmolLM2-135M.

`python -m benchmarks.native_linear [TOKENS ...]`. Each layer has weights of its own, so that a
step finds them in memory and not in a cache, as a real one does. A figure is the median over
rounds of the thread's own processor time; `model` adds up all layers and the head.
"""

import ctypes
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from kernels.cpu import structs
from kernels.cpu.library import chosen_variant, native
from kernels.cpu.packed import PackedMatrix, pack
from kernels.matrix import QuantizedMatrix

LAYERS = 30
TOKENS = (1, 2, 4, 16, 64, 512)
SHAPES = {
    "qkv": (960, 576, 4),
    "o": (576, 576, 4),
    "gate_up": (3072, 576, 4),
    "down": (576, 1536, 4),
    "head": (49152, 576, 8),
}


def draw(rows: int, columns: int, bits: int, seed: int) -> QuantizedMatrix:
    """Random codes; scales and minima that half precision holds, as Q4_1 and Q8_0 have them."""
    random = np.random.default_rng(seed)
    per_block = (rows, columns // 32)
    scales = random.uniform(0.01, 0.02, per_block).astype(np.float16).astype(np.float32)
    if bits == 8:
        codes = random.integers(-127, 128, (rows, columns), np.int8)
        return QuantizedMatrix(codes, scales, None, 32, 8)
    return QuantizedMatrix(
        random.integers(0, 16, (rows, columns), np.uint8), scales, -8 * scales, 32, 4
    )


@dataclass
class Activations:
    """fp32 activations and their 8-bit form, with the struct that points to them."""

    values: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    sums: np.ndarray
    struct: structs.Activations


def activations(tokens: int, columns: int) -> Activations:
    values = np.random.default_rng(1).standard_normal((tokens, columns), np.float32)
    codes = np.empty((tokens, columns), np.int8)
    scales, sums = np.empty((2, tokens, columns // 32), np.float32)
    pointers = [a.ctypes.data for a in (values, codes, scales, sums)]
    native().evh_quantize(pointers[0], columns, *pointers[1:], 0, tokens)
    struct = structs.Activations(*pointers, tokens, columns)
    return Activations(values, codes, scales, sums, struct)


def rounds(weights: list[PackedMatrix], tokens: int, count: int) -> list[float]:
    """Processor seconds of one product, for each round over all the weights."""
    rows, columns = weights[0].shape
    x = activations(tokens, columns)
    out = np.empty((tokens, rows), np.float32)
    scratch = np.empty(native().evh_linear_scratch(tokens), np.float32)
    seconds = []
    for _ in range(count):
        began = time.thread_time()
        for weight in weights:
            native().evh_linear(
                ctypes.byref(weight.struct),
                ctypes.byref(x.struct),
                out.ctypes.data,
                rows,
                0,
                scratch.ctypes.data,
                0,
                weight.num_panels,
            )
        seconds.append((time.thread_time() - began) / len(weights))
    return seconds


def measure(mode: str, all_tokens: list[int]) -> list[dict[str, object]]:
    figures = []
    model = dict.fromkeys(all_tokens, 0.0)
    for name, (rows, columns, bits) in SHAPES.items():
        copies = 1 if name == "head" else LAYERS
        matrices = [draw(rows, columns, bits, seed) for seed in range(copies)]
        weights = [pack(matrix, int8_activations=mode == "int8") for matrix in matrices]
        for tokens in all_tokens:
            took = statistics.median(rounds(weights, tokens, 3 if tokens > 64 else 15))
            model[tokens] += took * copies
            figure = {"shape": name, "mode": mode, "tokens": tokens, "microseconds": took * 1e6}
            figure["gflops"] = 2 * rows * columns * tokens / took / 1e9
            figure["gigabytes_per_second"] = weights[0].nbytes / took / 1e9
            figures.append(figure)
    figures += [
        {"shape": "model", "mode": mode, "tokens": t, "microseconds": s * 1e6}
        for t, s in model.items()
    ]
    return figures


def main() -> None:
    all_tokens = [int(argument) for argument in sys.argv[1:]] or list(TOKENS)
    figures = measure("exact", all_tokens)
    if chosen_variant() == "avx2":
        figures += measure("int8", all_tokens)
    rounded = [
        {key: round(v, 1) if isinstance(v, float) else v for key, v in figure.items()}
        for figure in figures
    ]
    report = {"variant": chosen_variant(), "load": os.getloadavg(), "figures": rounded}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
