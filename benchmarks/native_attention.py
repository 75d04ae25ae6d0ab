"""What native paged attention takes on one core, in microseconds per call, as JSON.

`python -m benchmarks.native_attention`: one layer's attention of decodes over contexts of several
lengths, and of a prompt; the fastest of several rounds. Calls go round over so many layers that no
cache holds a layer's pages until its next turn, as in a model. FLOP/s count the two products alone;
bytes are the keys and values that must be read at least once.
"""

import json
import time
from collections.abc import Callable
from ctypes import c_void_p
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from kernels.cpu.library import chosen_variant, native
from kernels.cpu.structs import Batch, Pages, address

PAGE_SIZE = 16
ROUNDS = 7
ROUND_S = 0.05
CACHES = 64 << 20
"""Bytes that surely do not fit the caches."""


@dataclass(frozen=True)
class Shape:
    """Heads of a model: SmolLM2's by default."""

    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64


SHAPES = {
    "9 heads, 3 kv, D 64": Shape(),
    "4 heads, 4 kv, D 64": Shape(4, 4, 64),
    "8 heads, 2 kv, D 128": Shape(8, 2, 128),
    "4 heads, 1 kv, D 256": Shape(4, 1, 256),
}
# (rows, new tokens of each, positions in the end)
BATCHES = {
    "decode 1 x 160": (1, 1, 160),
    "decode 16 x 160": (16, 1, 160),
    "decode 16 x 1024": (16, 1, 1024),
    "decode 4 x 4096": (4, 1, 4096),
    "prefill 512": (1, 512, 512),
    "prefill 128 after 1024": (1, 128, 1152),
}


class Case:
    """Arrays of one batch, and the kernel's call over them."""

    def __init__(self, shape: Shape, rows: int, count: int, length: int) -> None:
        random = np.random.default_rng(0)
        used = -(-length // PAGE_SIZE)
        self.shape, self.count, self.length = shape, count, length
        tables = random.permutation(rows * used).reshape(1, rows, used)
        self.tables = tables.astype(np.int32)
        self.positions = np.tile(np.arange(length - count, length, dtype=np.int32), rows)
        self.rows = np.repeat(np.arange(rows, dtype=np.int32), count)
        self.row_starts = np.arange(0, rows * count + 1, count, dtype=np.int32)
        self.first_positions = np.full(rows, length - count, np.int32)
        pages = CACHES // self.bytes + 1, rows * used, shape.kv_heads
        self.keys = random.standard_normal((*pages, shape.head_dim, PAGE_SIZE), np.float32)
        self.values = random.standard_normal((*pages, PAGE_SIZE, shape.head_dim), np.float32)
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv = random.standard_normal((rows * count, width), np.float32)
        self.out = np.empty((rows * count, shape.heads * shape.head_dim), np.float32)

    @property
    def flop(self) -> float:
        """Of both products."""
        seen = self.count * (self.length - self.count) + self.count * (self.count + 1) / 2
        return 4 * len(self.first_positions) * seen * self.shape.heads * self.shape.head_dim

    @property
    def bytes(self) -> int:
        """Of keys and values that are read."""
        positions = len(self.first_positions) * self.length
        return 8 * positions * self.shape.kv_heads * self.shape.head_dim

    def call(self) -> Callable[[], None]:
        library, shape = native(), self.shape
        batch = Batch(
            positions=address(self.positions),
            rows=address(self.rows),
            row_starts=address(self.row_starts),
            first_positions=address(self.first_positions),
            block_tables=address(self.tables),
            num_tokens=len(self.qkv),
            num_rows=self.tables.shape[1],
            table_width=self.tables.shape[2],
        )
        layers = [
            Pages(
                keys=address(keys),
                values=address(values),
                num_kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                page_size=PAGE_SIZE,
            )
            for keys, values in zip(self.keys, self.values, strict=True)
        ]
        scratch = np.empty(library.evh_attention_scratch(shape.heads, layers[0]), np.float32)
        items = library.evh_attention_items(batch, shape.kv_heads)
        queries = address(self.qkv), shape.heads, shape.head_dim**-0.5
        places = address(self.out), scratch.ctypes.data_as(c_void_p)  # which keeps the array
        turns = cycle(layers)
        return lambda: library.evh_attention(*queries, next(turns), batch, *places, 0, items)


def fastest(call: Callable[[], None]) -> float:
    """Seconds of processor time a call takes in the fastest round."""
    call()
    began, repeats = time.process_time(), 0
    while time.process_time() - began < ROUND_S:
        call()
        repeats += 1
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(repeats):
            call()
        rounds.append((time.process_time() - began) / repeats)
    return min(rounds)


def measure(case: Case) -> dict[str, float]:
    seconds = fastest(case.call())
    return {
        "microseconds": round(seconds * 1e6, 1),
        "gflop_s": round(case.flop / seconds / 1e9, 1),
        "gbyte_s": round(case.bytes / seconds / 1e9, 1),
    }


def main() -> None:
    results = {
        model: {batch: measure(Case(shape, *sizes)) for batch, sizes in BATCHES.items()}
        for model, shape in SHAPES.items()
    }
    print(json.dumps({"variant": chosen_variant(), "one_core": results}, indent=2))


if __name__ == "__main__":
    main()
