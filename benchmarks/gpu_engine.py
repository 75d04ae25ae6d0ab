"""The engine on a GPU against transformers: paging, chunks and prefix cache included.

Tiny random models of every family, and the default model where its file is: the reference computes
in fp32 on the weights rounded to the type. In fp32 logits are at most 1e-3 apart. In 16 bits they
are no further from the reference than three times what transformers itself is in that type.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.gpu_section import Section
from engine.core.engine_core import CoreConfig
from engine.model import store
from engine.model.gpu_decoder import GpuDecoder
from engine.model.load import open_weights
from engine.runner.decoder_runner import DecoderRunner
from tests.support.equivalence import Case, Comparison, forced_case, reference_from_gguf
from tests.support.tiny_models import FAMILIES, tiny

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
TOLERANCE = 1e-3
BLOCK = 16
OUTPUT = 4


def run(section: Section, gpu: bool) -> None:  # noqa: FBT001 - one signature for all sections
    disable_progress_bar()
    device = "cuda" if gpu else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            for dtype in _types(family, gpu=gpu):
                name = f"{family} {dtype}"
                if not section.in_time:
                    section.skip(name, "no time is left")
                    continue
                _check_tiny(section, Path(folder) / name, family, dtype, device)
    _check_default(section, device)


def _types(family: str, *, gpu: bool) -> list[str]:
    """All on a GPU, where there is time; Gemma is never computed in float16."""
    if not gpu and family not in {"gemma3_text", "qwen3"}:
        return ["float32"]
    return [name for name in TYPES if (family, name) != ("gemma3_text", "float16")]


def _check_tiny(section: Section, folder: Path, family: str, dtype: str, device: str) -> None:
    lengths = (1, 15, 16, 60) if device == "cuda" else (1, 17)
    rounded = tiny(family, head_dim=16).to(TYPES[dtype])
    rounded.save_pretrained(folder)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 300, length + OUTPUT).tolist() for length in lengths]
    theirs = [forced_case(rounded, tokens, len(tokens) - OUTPUT) for tokens in prompts]
    reference = rounded.float()
    cases = [forced_case(reference, tokens, len(tokens) - OUTPUT) for tokens in prompts]
    tolerance = TOLERANCE
    if dtype != "float32":
        tolerance = 3 * max(
            float((a.logits.float() - b.logits).abs().max())
            for a, b in zip(theirs, cases, strict=True)
        )
    model = GpuDecoder(open_weights(folder), dtype, device)
    _check(section, f"{family} {dtype}", model, cases, tolerance)


def _check_default(section: Section, device: str) -> None:
    name = "default model float32"
    given = os.environ.get("EVENHAND_TEST_MODEL")
    if device == "cpu":
        section.skip(name, "it would take the interpreter hours")
    elif not given and store.is_missing("smollm2-135m"):
        section.skip(name, "not here: `evenhand model pull smollm2-135m`, or EVENHAND_TEST_MODEL")
    elif not section.in_time:
        section.skip(name, "no time is left")
    else:
        path = Path(given) if given else store.locate("smollm2-135m").path
        reference = reference_from_gguf(path)
        tokens = np.random.default_rng(7).integers(0, 40_000, 120).tolist()
        cases = [forced_case(reference, tokens[:length], length - 8) for length in (9, 120)]
        _check(section, name, GpuDecoder(open_weights(path), "float32", device), cases, TOLERANCE)


def _check(
    section: Section, name: str, model: GpuDecoder, cases: list[Case], tolerance: float
) -> None:
    runner = DecoderRunner(model, 128, BLOCK, 8, 32)
    config = CoreConfig(
        num_blocks=128,
        max_model_len=model.config.context_length,
        model_digest=model.digest,
        block_size=BLOCK,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        windows=runner.windows,
    )
    distance = Comparison(runner, config).run(cases).largest_logit_difference
    right = distance <= tolerance  # false for NaN as well
    section.check(name, None if right else f"logits differ by {distance:.3g}, over {tolerance:.3g}")
    section.figures.append(
        {"name": f"logits, {name}", "difference": distance, "tolerance": tolerance}
    )
