"""Decoders of any shape with weights that are drawn, not read: every format, every feature."""

import dataclasses
import zlib

import numpy as np

from engine.model.config import ModelConfig
from engine.model.rope import Linear, Rope, Unscaled
from kernels.layout import BatchLayout
from kernels.matrix import FloatMatrix, QuantizedMatrix

FORMATS = ("f32", "f16", "bf16", "w4", "w4+min", "w8", "w8+min", "w8/16", "w8/16+min")


def config(layer_windows=(None, 12, None), **changes) -> ModelConfig:
    """Small, with grouped heads; `changes` are of its fields."""
    return dataclasses.replace(
        ModelConfig(
            layer_windows=layer_windows,
            hidden_size=96,
            intermediate_size=160,
            num_heads=6,
            num_kv_heads=2,
            head_dim=32,
            vocab_size=200,
            context_length=512,
            norm_eps=1e-5,
            ropes=(Rope(32, 10000.0, Unscaled()), Rope(32, 500.0, Linear(2.0, 1.2))),
            layer_ropes=tuple(number % 2 for number in range(len(layer_windows))),
            attention_scale=0.2,
        ),
        **changes,
    )


class DrawnWeights:
    """`engine.model.weights.Weights`: a tensor follows from its name and the seed alone."""

    def __init__(self, config: ModelConfig, formats=FORMATS, *, tied=False, seed=0) -> None:
        self.config = config
        self.tied = tied
        self._formats = formats
        self._seed = seed

    def matrix(self, name, shape):
        draw = self._draw(name)
        kind = self._formats[int(draw.integers(len(self._formats)))]
        if kind in ("f32", "f16", "bf16"):
            values = draw.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
            if kind == "bf16":
                return FloatMatrix((values.view(np.uint32) >> 16).astype(np.uint16), "bf16")
            return FloatMatrix(values.astype(kind.replace("f", "float")), kind)
        return _codes(draw, kind, shape)

    def vector(self, name, length):
        values = self._draw(name).standard_normal(length, np.float32) * np.float32(0.3)
        return values + np.float32("norm" in name)

    def digest(self):
        return bytes(32)

    def _draw(self, name):
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])


def _codes(draw, kind, shape):
    rows, columns = shape
    bits, block = int(kind[1]), 16 if "/16" in kind else 32
    low, high = (0, 16) if bits == 4 else (-128, 128)
    codes = draw.integers(low, high, shape, np.uint8 if bits == 4 else np.int8)
    unit = np.float32(3.5 / (high - low) / columns**0.5)  # weights of variance 1 / columns
    per_block = (rows, columns // block)
    scales = (unit * draw.uniform(0.5, 1.5, per_block).astype(np.float32)).astype(np.float16)
    scales = scales.astype(np.float32)
    minima = None
    if bits == 4 or kind.endswith("+min"):
        minima = (scales * np.float32(-7.5 if bits == 4 else 3)).astype(np.float16)
        minima = minima.astype(np.float32)
    return QuantizedMatrix(codes, scales, minima, block, bits)


class Sequences:
    """Token sequences whose pages are scattered over a pool, and batches of parts of them."""

    def __init__(self, config, page_size, lengths, num_groups, seed=0):
        draw = np.random.default_rng(seed)
        self.tokens = [draw.integers(0, config.vocab_size, n).astype(np.int32) for n in lengths]
        self._page_size = page_size
        width = -(-max(lengths) // page_size)
        pages = draw.permutation(num_groups * len(lengths) * width).astype(np.int32)
        self.num_pages = len(pages)
        self._tables = pages.reshape(num_groups, len(lengths), width)
        self._done = [0] * len(lengths)

    def batch(self, counts):
        """(token ids, layout) of the next `counts[i]` tokens of sequence i; advances them."""
        rows = [row for row, count in counts.items() if count]
        firsts = [self._done[row] for row in rows]
        for row in rows:
            self._done[row] += counts[row]
        starts = np.concatenate([[0], np.cumsum([counts[row] for row in rows])]).astype(np.int32)
        spans = [(f, f + counts[row]) for f, row in zip(firsts, rows, strict=True)]
        return (
            np.concatenate(
                [self.tokens[row][f:p] for row, (f, p) in zip(rows, spans, strict=True)]
            ),
            BatchLayout(
                positions=np.concatenate([np.arange(f, p, dtype=np.int32) for f, p in spans]),
                rows=np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(starts)),
                row_starts=starts,
                first_positions=np.array(firsts, np.int32),
                block_tables=np.ascontiguousarray(self._tables[:, rows]),
            ),
        )

    def rewind(self):
        self._done = [0] * len(self._done)
