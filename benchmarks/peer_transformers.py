"""The peer: transformers' continuous batching on the same weights in fp32, in a process of its own.

Run as `python -m benchmarks.peer_transformers MODEL`; the last line printed is the figures as JSON.
The manager behind `generate_batch` is kept warm between rounds, which favours the peer: its start
and warm-up are not counted.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.generation.continuous_batching.initialization import WorkloadHints

from benchmarks.engine_speed import CONCURRENT, NEW_TOKENS, PROMPT_TOKENS, prompts, summary
from tests.support.equivalence import reference_from_gguf

ROUNDS = 3


def main() -> None:
    model = reference_from_gguf(Path(sys.argv[1]))
    greedy = GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    figures = {}
    for count in CONCURRENT:
        hints = WorkloadHints(
            max_prompt_length=PROMPT_TOKENS, max_generated_length=NEW_TOKENS, num_requests=count
        )
        with model.continuous_batching_context_manager(
            generation_config=greedy, block=True, timeout=5, workload_hints=hints
        ) as manager:
            answered(manager, prompts(1, seed=99), 4)
            figures[str(count)] = summary(
                [rate(manager, prompts(count, seed=round_)) for round_ in range(ROUNDS)]
            )
    print(json.dumps(figures))


def rate(manager: Any, batch: list[list[int]]) -> float:
    began = time.perf_counter()
    tokens = answered(manager, batch, NEW_TOKENS)
    return tokens / (time.perf_counter() - began)


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
