"""A peer: transformers' continuous batching on the same weights in fp32, in process.

Run as `python -m benchmarks.peer_transformers MODEL`. The manager behind `generate_batch` stays
warm between rounds, which favours the peer: its start is not counted.
"""

import sys
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers import __version__ as version
from transformers.generation.continuous_batching.initialization import WorkloadHints

from benchmarks.figures import PROMPT_TOKENS
from benchmarks.peer_protocol import answer_rounds
from tests.support.equivalence import reference_from_gguf

MOST_NEW_TOKENS = 64
MOST_REQUESTS = 16


def main() -> None:
    model = reference_from_gguf(Path(sys.argv[1]))
    greedy = GenerationConfig(
        max_new_tokens=MOST_NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    hints = WorkloadHints(
        max_prompt_length=PROMPT_TOKENS,
        max_generated_length=MOST_NEW_TOKENS,
        num_requests=MOST_REQUESTS,
    )
    with model.continuous_batching_context_manager(
        generation_config=greedy, block=True, timeout=5, workload_hints=hints
    ) as manager:
        answer_rounds(
            f"transformers {version}",
            lambda prompts, new_tokens: answered(manager, prompts, new_tokens),
        )


def answered(manager: Any, batch: list[list[int]], new_tokens: int) -> int:
    """Output tokens of the whole batch, each request run to its end."""
    manager.add_requests(inputs=batch, max_new_tokens=new_tokens)
    total = finished = 0
    while finished < len(batch):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("the peer's thread ended")
            continue
        if result.is_finished():
            finished += 1
            total += len(result.generated_tokens)
    return total


if __name__ == "__main__":
    main()
