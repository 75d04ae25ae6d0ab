"""How far 8-bit activations are from exact arithmetic: both are given the same tokens.

Once what exact arithmetic itself answers to each prompt, greedily, and once real text, where models
are often in two minds and a small error decides. At every position both say which token comes next:
how often they agree, and by how much all logits differ. It depends on no clock.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.passages import PASSAGES
from benchmarks.steps import BLOCK, Steps
from engine.model.load import load_model
from engine.protocol.text.model import load_text_model

GIVEN: Final = 32
"""Tokens of a passage that are a prompt: no position among them counts."""
JUDGED: Final = 64
MAX_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class Agreement:
    """`agreed` of `judged` positions have the same most likely token; errors are of logits."""

    judged: int
    agreed: int
    largest_error: float
    rms_error: float
    logit_deviation: float

    @property
    def share(self) -> float:
        """Of positions that agree."""
        return self.agreed / self.judged

    def document(self) -> dict[str, float]:
        """For reading."""
        return {
            "positions": self.judged,
            "argmax_agreement": round(self.share, 4),
            "largest_logit_error": round(self.largest_error, 3),
            "rms_logit_error": round(self.rms_error, 3),
            "logit_standard_deviation": round(self.logit_deviation, 2),
        }


def run(model: Path) -> dict[str, object]:
    """Over all passages."""
    answers, text = measure(model)
    return {
        "passages": len(PASSAGES),
        "own_answers": answers.document(),
        "real_text": text.document(),
    }


def measure(model: Path) -> tuple[Agreement, Agreement]:
    """Of the answers of exact arithmetic to the beginnings of passages, and of whole passages."""
    text = load_text_model(model)
    passages = [text.encode(passage) for passage in PASSAGES]
    pages = MAX_TOKENS // BLOCK
    exact = Steps(load_model(model), pages, MAX_TOKENS)
    rounded = Steps(load_model(model, quantization="activations-int8"), pages, MAX_TOKENS)
    answers = [_continued(exact, passage[:GIVEN]) for passage in passages]
    return _agreement(exact, rounded, answers), _agreement(exact, rounded, passages)


def _continued(steps: Steps, prompt: list[int]) -> list[int]:
    """The prompt and the `JUDGED` tokens that are most likely after it, one after another."""
    tokens = [*prompt]
    logits = steps.next_logits(tokens, 0)
    for _ in range(JUDGED):
        tokens.append(int(logits[0].argmax()))
        logits = steps.next_logits(tokens[-1:], len(tokens) - 1)
    return tokens


def _agreement(exact: Steps, rounded: Steps, texts: list[list[int]]) -> Agreement:
    judged = slice(GIVEN - 1, -1)  # the logits at a position are of the token after it
    return compare(
        *(
            np.concatenate([steps.all_logits(tokens)[judged] for tokens in texts])
            for steps in (exact, rounded)
        )
    )


def compare(exact: Any, rounded: Any) -> Agreement:
    """Of logits [positions, vocabulary]."""
    errors = rounded.astype(np.float64) - exact
    return Agreement(
        judged=len(exact),
        agreed=int((exact.argmax(axis=1) == rounded.argmax(axis=1)).sum()),
        largest_error=float(np.abs(errors).max()),
        rms_error=float(np.sqrt((errors**2).mean())),
        logit_deviation=float(exact.std()),
    )
