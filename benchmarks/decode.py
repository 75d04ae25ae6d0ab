"""What the decoder alone does, without scheduler or HTTP: decode at 1, 4 and 16 rows, and prefill.

Step times by exact arithmetic and with 8-bit activations, the two in turns. Decoding rows stand at
position 256; the prompt has 512 tokens and is computed in one step.
"""

from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.figures import prompts
from benchmarks.steps import BLOCK, Steps
from engine.model.load import load_model
from engine.model.native import Quantization

ROWS: Final = (1, 4, 16)
CONTEXT: Final = 256
PREFILL_TOKENS: Final = 512
ROUNDS: Final = 5
STEPS: Final = 8
PAGES: Final = max(ROWS) * (CONTEXT // BLOCK + 1)
MODES: Final[tuple[Quantization, ...]] = ("none", "activations-int8")


def run(model: Path) -> dict[str, object]:
    """Medians of step times, and the tokens per second they make."""
    engines = {
        mode: Steps(load_model(model, quantization=mode), PAGES, PREFILL_TOKENS) for mode in MODES
    }
    return {
        "context": CONTEXT,
        "prefill_tokens": PREFILL_TOKENS,
        "modes": _figures(engines),
    }


def _figures(engines: dict[Quantization, Steps]) -> dict[str, object]:
    decoding: dict[Quantization, dict[int, list[float]]] = {
        mode: {rows: [] for rows in ROWS} for mode in engines
    }
    prefilling: dict[Quantization, list[float]] = {mode: [] for mode in engines}
    [prompt] = prompts(1, seed=5, tokens=PREFILL_TOKENS)
    for _ in range(ROUNDS):
        for mode, steps in engines.items():
            prefilling[mode].append(steps.seconds(steps.batch([prompt], 0)))
            for rows in ROWS:
                batch = steps.batch(prompts(rows, seed=rows, tokens=1), CONTEXT)
                decoding[mode][rows] += [steps.seconds(batch) for _ in range(STEPS)]
    return {
        mode: {
            "decode": {str(rows): _rate(rows, decoding[mode][rows]) for rows in ROWS},
            "prefill": _rate(PREFILL_TOKENS, prefilling[mode]),
        }
        for mode in engines
    }


def _rate(tokens: int, seconds: list[float]) -> dict[str, float]:
    middle = median(seconds)
    return {"step_ms": round(1000 * middle, 2), "tokens_per_s": round(tokens / middle, 1)}
