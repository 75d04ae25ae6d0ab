"""What the scheduler costs per running request in a step of decodes only, in microseconds.

A step here is everything the engine core does but the model: schedule, extend, update, publish full
blocks, report. The runner is a stub whose time is taken out. Once with unrelated prompts, once with
families of 16 samples that share theirs.
"""

import gc
import time
from pathlib import Path
from statistics import median

from engine.core.batch import RunnerOutput, SampledToken, ScheduledBatch
from engine.core.config import CoreConfig
from engine.core.engine_core import EngineCore
from engine.core.request import Request, SamplingParams

RUNNING = (16, 64, 256)
STEPS = 400
PROMPT_TOKENS = 100
SAMPLES = 16
TOKEN = SampledToken(7)


class StubRunner:
    """Answers every row with the same token, and knows how long that took."""

    def __init__(self) -> None:
        self.total_s = 0.0

    def execute(self, batch: ScheduledBatch) -> RunnerOutput:
        began = time.perf_counter()
        sampled = {row.request_id: TOKEN for row in batch.rows if row.samples}
        self.total_s += time.perf_counter() - began
        return RunnerOutput(sampled)


def run(_model: Path) -> dict[str, object]:
    """Medians over many steps, by running requests."""
    return {
        "microseconds_per_request_and_step": {
            str(count): round(_microseconds(count, samples=1), 2) for count in RUNNING
        },
        "with_16_samples_per_prompt": {
            str(count): round(_microseconds(count, samples=SAMPLES), 2) for count in RUNNING
        },
        "steps": STEPS,
    }


def _microseconds(num_running: int, samples: int) -> float:
    runner = StubRunner()
    core = EngineCore(_config(num_running), runner)
    for number in range(0, num_running, samples):
        prompt = tuple((number * 31 + index * 7) % 1000 for index in range(PROMPT_TOKENS))
        core.add(*(_request(f"{number}/{index}", prompt, index) for index in range(samples)))
    while not _all_decode(core, num_running):
        core.step()
    times = []
    gc.collect()
    for _ in range(STEPS):
        stub, began = runner.total_s, time.perf_counter()
        report = core.step()
        times.append(time.perf_counter() - began - (runner.total_s - stub))
        if report.num_batch_tokens != num_running:
            raise RuntimeError("not every request decoded")
    return median(times) / num_running * 1e6


def _all_decode(core: EngineCore, num_running: int) -> bool:
    return core.stats().running == num_running and core.step().num_batch_tokens == num_running


def _config(num_running: int) -> CoreConfig:
    length = PROMPT_TOKENS + STEPS + 200
    return CoreConfig(
        num_blocks=num_running * (length // 16 + 1),
        max_model_len=length,
        model_digest=bytes(32),
        max_num_seqs=num_running,
        max_num_batched_tokens=max(512, num_running),
    )


def _request(request_id: str, prompt: tuple[int, ...], seed: int) -> Request:
    sampling = SamplingParams(max_tokens=10_000, seed=seed)
    return Request(request_id, prompt, sampling, namespace="bench")
