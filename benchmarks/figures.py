"""What the sections share: the prompts they send, and how figures are summed up."""

import random
import statistics
from collections.abc import Sequence

PROMPT_TOKENS = 128
FIRST_ID, LAST_ID = 1_000, 40_000


def prompts(count: int, seed: int, tokens: int = PROMPT_TOKENS) -> list[list[int]]:
    """Random token ids: no prefix cache can help."""
    draw = random.Random(seed)
    return [[draw.randint(FIRST_ID, LAST_ID) for _ in range(tokens)] for _ in range(count)]


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and range, rounded for reading."""
    return {
        "median": round(statistics.median(values), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }
