"""A peer: OpenVINO GenAI's continuous batching on the same file, in process.

Run as `python -m benchmarks.peer_openvino MODEL` by an interpreter that has `openvino-genai`. Its
KV cache is as large as ours; all else is its default.
"""

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai

from benchmarks.peer_protocol import answer_rounds

CACHE_GB = 1


def main() -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU")

    def complete(prompts: list[list[int]], new_tokens: int) -> int:
        greedy = genai.GenerationConfig()
        greedy.max_new_tokens = new_tokens
        greedy.ignore_eos = True
        greedy.do_sample = False
        ids = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(ids, [greedy] * len(ids))
        return sum(len(result.m_generation_ids[0]) for result in results)

    answer_rounds(f"openvino-genai {genai.__version__}", complete)


if __name__ == "__main__":
    main()
