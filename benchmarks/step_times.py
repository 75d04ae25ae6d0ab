"""How long the real engine's steps take on this machine, as the table the simulator is fitted to.

`python -m benchmarks.step_times MODEL > engine/sim/data/cpu_smollm2_135m.json` renews the table;
run it on an otherwise idle machine. Each entry is one batch, computed several times: the fastest,
for whatever else ran on the machine only ever made it slower.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from engine.core.batch import ScheduledBatch, ScheduledRow
from engine.core.request import SamplingParams
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner
from kernels.cpu.team import available_cores

BLOCK_SIZE = 16
DECODE_ROWS = (1, 2, 4, 8, 16)
DECODE_CONTEXTS = (64, 256, 1024)
CHUNKS = (16, 32, 64, 128, 256, 512)
CHUNK_STARTS = (0, 1024)
ROUNDS = 15
NUM_BLOCKS = 16 * 1024 // BLOCK_SIZE + 16 * 4
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def batches() -> Iterator[tuple[int, int, int]]:
    """(rows, new tokens per row, tokens before them) of every batch measured."""
    for rows in DECODE_ROWS:
        for context in DECODE_CONTEXTS:
            yield rows, 1, context - 1
    for tokens in CHUNKS:
        for start in CHUNK_STARTS:
            yield 1, tokens, start


def batch(rows: int, tokens: int, start: int) -> ScheduledBatch:
    """Rows with blocks of their own, which may hold anything: only the time matters."""
    ids = count()
    per_row = -(-(start + tokens) // BLOCK_SIZE)
    scheduled = [
        ScheduledRow(
            f"row-{row}",
            range(1_000 + row, 1_000 + row + tokens),
            start,
            ([next(ids) for _ in range(per_row)],),
            GREEDY,
            samples=True,
        )
        for row in range(rows)
    ]
    return ScheduledBatch(1, tuple(scheduled), rows * tokens)


def measure(model: Path) -> list[dict[str, float]]:
    """The table. Rounds go over all batches in turn, so a busy moment does not hit only one."""
    threads = available_cores()
    runner = DecoderRunner(load_model(model, threads=threads), NUM_BLOCKS, BLOCK_SIZE, 16, 512)
    shapes = list(batches())
    seconds: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in shapes}
    for done in range(-1, ROUNDS):
        for shape in shapes:
            work = batch(*shape)
            began = time.perf_counter()
            runner.execute(work)
            if done >= 0:  # the first round only warms up
                seconds[shape].append(time.perf_counter() - began)
        print(f"round {done + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    return [
        {"rows": r, "tokens": t, "start": s, "seconds": round(min(took), 6)}
        for (r, t, s), took in seconds.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_times", description=__doc__)
    parser.add_argument("model", type=Path)
    model = parser.parse_args().model
    table = {
        "model": "SmolLM2-135M-Instruct Q4_1, computed in fp32",
        "machine": {"cpus": os.cpu_count(), "architecture": platform.machine()},
        "steps": measure(model),
    }
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
