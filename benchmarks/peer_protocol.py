"""What the benchmark and a peer's process say to each other: one JSON line each way per round.

The peer says `{"ready": ...}` once it is loaded, then answers every `{"prompts", "new_tokens"}`
with `{"output_tokens", "seconds"}`. Only the standard library: peers have their own environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable

# Completes all prompts (token ids) greedily at once, each to exactly that many new tokens, and
# returns how many there were in all.
Complete = Callable[[list[list[int]], int], int]


def answer_rounds(about: str, complete: Complete) -> None:
    """Answer on the real standard output; whatever libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        print(json.dumps({"ready": about}), file=answers, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            began = time.perf_counter()
            output_tokens = complete(asked["prompts"], asked["new_tokens"])
            seconds = time.perf_counter() - began
            answer = {"output_tokens": output_tokens, "seconds": seconds}
            print(json.dumps(answer), file=answers, flush=True)
