"""What share of the device's memory bandwidth, and of its arithmetic, the kernels reach.

The ceilings are measured beside them: a copy of one large tensor to another, and a product of two
large matrices in bf16. A kernel's bytes are those it cannot do without: each input once, each
output once. Sizes are Llama 3 8B's, large enough that launches and caches do not count.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.gpu_section import Section
from kernels.api import KvPages, TensorLayout
from kernels.draws import Draws
from kernels.layout import BatchLayout, PagedLayer
from kernels.triton.ops import TritonKernels

HEADS, KV_HEADS, DIM, HIDDEN, INNER, PAGE = 32, 8, 128, 4096, 14336, 16
LAYER = PagedLayer(0, 0)


@dataclass(frozen=True)
class Scale:
    """Sizes of the measurement; `repeats` runs are timed and the median counts."""

    device: str
    dtype: torch.dtype
    elements: int  # of the tensor that is copied
    square: int  # rows and columns of the product's matrices
    tokens: int
    contexts: tuple[tuple[int, int], ...]  # decoding: rows, and the context of each
    prompt: int
    vocabulary: int
    repeats: int


GPU = Scale(
    "cuda", torch.bfloat16, 1 << 29, 8192, 32768, ((64, 4096), (1, 131_072)), 8192, 128_256, 11
)
INTERPRETED = Scale("cpu", torch.float32, 1 << 20, 64, 2, ((1, 24),), 4, 300, 1)


@dataclass(frozen=True)
class Measurement:
    """`amount` are bytes, or operations, of one run."""

    name: str
    amount: float
    run: Callable[[], object]
    unit: str = "GB/s"


def run(section: Section, gpu: bool) -> None:  # noqa: FBT001 - one signature for all sections
    measure(section, GPU if gpu else INTERPRETED)


def measure(section: Section, scale: Scale) -> None:
    """The ceilings, then each kernel over the ceiling of its unit."""
    ceilings: dict[str, float] = {}
    with torch.inference_mode():
        for make in (
            _copy,
            _product,
            _norms,
            _gates,
            _rotation,
            _stores,
            _copies,
            _decodes,
            _prefill,
            _draws,
        ):
            if not section.in_time:
                section.skip(make.__name__.strip("_"), "no time is left")
                continue
            for measurement in make(scale):
                seconds = _seconds(measurement.run, scale)
                rate = measurement.amount / seconds
                share = rate / ceilings.setdefault(measurement.unit, rate)
                section.figures.append(
                    {
                        "name": measurement.name,
                        measurement.unit: rate / (1e9 if measurement.unit == "GB/s" else 1e12),
                        "of ceiling": share,
                        "us": seconds * 1e6,
                    }
                )


def _seconds(run: Callable[[], object], scale: Scale) -> float:
    """The median time of one run, once everything is compiled and warm."""
    for _ in range(3 if scale.device == "cuda" else 1):
        run()
    return statistics.median(_once(run, scale.device) for _ in range(scale.repeats))


def _once(run: Callable[[], object], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    # While the GPU waits, the host gets ahead of it: what Python takes is not measured.
    torch.cuda._sleep(5_000_000)  # noqa: SLF001 - what torch's own benchmarks use
    began.record()
    run()
    ended.record()
    torch.cuda.synchronize()
    return began.elapsed_time(ended) / 1e3


def _random(scale: Scale, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=scale.dtype, device=scale.device)


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def _copy(scale: Scale) -> Iterator[Measurement]:
    source = _random(scale, scale.elements)
    target = torch.empty_like(source)
    yield Measurement(
        "copy of a tensor (ceiling)", _bytes(source, target), lambda: target.copy_(source)
    )


def _product(scale: Scale) -> Iterator[Measurement]:
    a, b = (_random(scale, scale.square, scale.square) for _ in range(2))
    yield Measurement(
        "product of matrices (ceiling)", 2 * scale.square**3, lambda: a @ b, "TFLOP/s"
    )


def _norms(scale: Scale) -> Iterator[Measurement]:
    x, weight = _random(scale, scale.tokens, HIDDEN), _random(scale, HIDDEN)
    ops = TritonKernels()
    yield Measurement("rms_norm", 2 * _bytes(x), lambda: ops.rms_norm(x, weight, 1e-6))


def _gates(scale: Scale) -> Iterator[Measurement]:
    gate_up = _random(scale, scale.tokens, 2 * INNER)
    ops = TritonKernels()
    yield Measurement("gated silu", 1.5 * _bytes(gate_up), lambda: ops.gated(gate_up, "silu"))


def _rotation(scale: Scale) -> Iterator[Measurement]:
    qkv = _random(scale, scale.tokens, (HEADS + 2 * KV_HEADS) * DIM)
    angles = torch.rand(scale.tokens, DIM // 2, device=scale.device)
    cos, sin = angles.cos(), angles.sin()
    rotated = HEADS + KV_HEADS
    amount = 2 * _bytes(qkv[:, : rotated * DIM]) + _bytes(cos, sin)
    ops = TritonKernels()
    yield Measurement("rotary", amount, lambda: ops.rotary(qkv, cos, sin, rotated))


def _stores(scale: Scale) -> Iterator[Measurement]:
    qkv, pages, layout = _batch(scale, [(0, scale.tokens)])
    amount = 2 * _bytes(qkv[:, HEADS * DIM :])
    ops = TritonKernels()
    yield Measurement("store_kv", amount, lambda: ops.store_kv(qkv, pages, LAYER, layout))


def _copies(scale: Scale) -> Iterator[Measurement]:
    count = max(1, scale.tokens // PAGE)
    pages = _pages(scale, 2 * count)
    sources, targets = list(range(count)), list(range(count, 2 * count))
    ops = TritonKernels()
    yield Measurement(
        "copy_pages",
        _bytes(pages.keys, pages.values),
        lambda: ops.copy_pages(pages, sources, targets),
    )


def _decodes(scale: Scale) -> Iterator[Measurement]:
    ops = TritonKernels()
    for rows, context in scale.contexts:
        qkv, pages, layout = _batch(scale, [(context - 1, 1)] * rows)
        per_token = 2 * KV_HEADS * DIM * scale.dtype.itemsize
        yield Measurement(
            f"decode attention, {rows} x {context}",
            rows * context * per_token,
            lambda: ops.paged_attention(qkv, pages, LAYER, layout, DIM**-0.5),  # noqa: B023
        )


def _prefill(scale: Scale) -> Iterator[Measurement]:
    qkv, pages, layout = _batch(scale, [(0, scale.prompt)])
    ops = TritonKernels()
    # Two products of 2 * DIM operations for each of the half square that is not masked.
    operations = 4 * DIM * HEADS * scale.prompt * (scale.prompt + 1) / 2
    yield Measurement(
        f"prefill attention of {scale.prompt}",
        operations,
        lambda: ops.paged_attention(qkv, pages, LAYER, layout, DIM**-0.5),
        "TFLOP/s",
    )


def _draws(scale: Scale) -> Iterator[Measurement]:
    ops = TritonKernels()
    for rows in (1, 64) if scale.device == "cuda" else (1,):
        logits = 3 * _random(scale, rows, scale.vocabulary)
        draws = Draws.of([(0.8, 0, 0.95, 0.0, 0.5)] * rows)
        yield Measurement(
            f"top-p of {rows} x {scale.vocabulary}",
            _bytes(logits),
            lambda: ops.sample(logits, draws),  # noqa: B023
        )


def _pages(scale: Scale, count: int) -> KvPages:
    return KvPages.allocate(1, count, KV_HEADS, DIM, PAGE, dtype=scale.dtype, device=scale.device)


def _batch(scale: Scale, rows: list[tuple[int, int]]) -> tuple[torch.Tensor, KvPages, TensorLayout]:
    """Rows (first position, new tokens) whose pages lie in no order; keys and values random."""
    firsts, counts = np.array(rows, np.int32).T
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tokens = np.arange(starts[-1], dtype=np.int32)
    owners = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    used = -(-int((firsts + counts).max()) // PAGE)
    tables = np.random.default_rng(0).permutation(len(rows) * used).astype(np.int32)
    pages = _pages(scale, len(rows) * used)
    pages.keys.normal_()
    pages.values.normal_()
    layout = BatchLayout(
        positions=tokens - starts[owners] + firsts[owners],
        rows=owners,
        row_starts=starts,
        first_positions=np.ascontiguousarray(firsts),
        block_tables=tables.reshape(1, len(rows), used),
    )
    qkv = _random(scale, len(tokens), (HEADS + 2 * KV_HEADS) * DIM)
    return qkv, pages, TensorLayout.of(layout, scale.device)
