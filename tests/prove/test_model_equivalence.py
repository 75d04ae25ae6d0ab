"""The whole matrix: the default model against transformers on the same GGUF file, in fp32.

20 prompts of 5 to 1,500 tokens, 64 tokens each teacher-forced on the reference's: alone and 16 at
a time, prefix cache cold and warm, prompts whole, in chunks of 512 and in chunks of 32. Then every
sampling option with log-probabilities of outputs and prompts, on prompts of at most 200 tokens,
also with preemption forced.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch

from engine.core.engine_core import CoreConfig
from engine.core.preemption import PreemptEvery
from engine.core.request import SamplingParams
from engine.model.load import load_model
from engine.protocol.text.model import load_text_model
from engine.runner.decoder_runner import DecoderRunner
from kernels.cpu.team import available_cores
from tests.support.decoding import TOLERANCE, Engine, decode, every_option
from tests.support.equivalence import (
    LOGIT_TOLERANCE,
    Comparison,
    reference_case,
    reference_from_gguf,
    worst,
)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(5400)]

LENGTHS = [5, 9, 15, 16, 17, 31, 32, 33, 48, 64, 100, 127, 128, 200, 256, 333, 512, 777, 1024, 1500]
NUM_TOKENS = 64
NUM_BLOCKS = 700  # every prompt and its output at once, and room to keep them cached
TEXT = (
    "A fair queue serves the tenant that has had least. Its counter grows by what it was given, "
    "weighted by what it is due; a newcomer starts at the floor, so that idling earns nothing. "
)


def make_prompts(path):
    """Half of them English, half of them any tokens at all."""
    text = load_text_model(path)
    rng = np.random.default_rng(2026)
    prompts = []
    for index, length in enumerate(LENGTHS):
        words = text.encode(f"{index}. " + TEXT * 40)
        uniform = rng.integers(0, text.vocab_size, length).tolist()
        prompts.append(words[:length] if index % 2 else uniform)
    return prompts


@pytest.fixture(scope="module")
def reference(smollm2):
    torch.set_num_threads(available_cores())
    return reference_from_gguf(smollm2)


@pytest.fixture(scope="module")
def cases(smollm2, reference):
    return [reference_case(reference, prompt, NUM_TOKENS) for prompt in make_prompts(smollm2)]


@pytest.fixture(scope="module")
def model(smollm2):
    return load_model(smollm2)


def comparison(model, budget, seqs):
    runner = DecoderRunner(model, NUM_BLOCKS, 16, seqs, budget)
    config = CoreConfig(
        num_blocks=NUM_BLOCKS,
        max_model_len=model.config.context_length,
        model_digest=model.digest,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
    )
    return Comparison(runner, config)


@pytest.mark.parametrize("budget", [2048, 512, 32])
@pytest.mark.parametrize("at_once", [1, 16])
def test_logits_and_tokens(model, cases, budget, at_once):
    engine = comparison(model, budget, at_once)
    found = {
        state: worst([engine.run(cases[at : at + at_once]) for at in range(0, len(cases), at_once)])
        for state in ("cold", "warm")
    }
    hits = engine.core.stats().prefix_hit_tokens
    print(
        json.dumps(
            {
                "claim": "logits equal transformers' on the same GGUF",
                "prompts": len(cases),
                "at_once": at_once,
                "chunk": budget,
                "prefix_hit_tokens": hits,
                **{state: dataclasses.asdict(value) for state, value in found.items()},
            }
        )
    )
    assert hits > sum(LENGTHS) * 0.9
    for difference in found.values():
        assert difference.tokens == len(cases) * NUM_TOKENS
        assert difference.largest_logit_difference <= LOGIT_TOLERANCE
        assert difference.mismatches_beyond_gap == 0


@pytest.fixture(scope="module")
def decodings(reference, cases):
    """Sixteen requests, each with other options, as the reference decodes them."""
    short = [case for case in cases if len(case.prompt) <= 200]
    result = []
    for index in range(16):
        case = short[index % len(short)]
        options = every_option(case.output)[index]
        params = SamplingParams(
            **{"max_tokens": 24, "temperature": 0.0, "seed": index, "logprobs": 20, **options},
            prompt_logprobs=None if index % 2 else 5,
        )
        result.append(decode(reference, case.prompt, params))
    return result


@pytest.mark.parametrize(("budget", "every"), [(2048, None), (32, None), (32, 3)])
def test_sampling_options_and_log_probabilities(model, decodings, budget, every):
    plain = comparison(model, budget, 16)
    config = dataclasses.replace(plain.core.config, prefix_cache=every is None)
    engine = Engine(plain.runner, config, every and PreemptEvery(every))
    found = {state: engine.difference(decodings) for state in ("cold", "warm")}
    stats = engine.core.stats()
    print(
        json.dumps(
            {
                "claim": "tokens and log-probabilities equal transformers' under every option",
                "requests": len(decodings),
                "chunk": budget,
                "preemptions": stats.preemptions,
                "prefix_hit_tokens": stats.prefix_hit_tokens,
                **{state: dataclasses.asdict(value) for state, value in found.items()},
            }
        )
    )
    assert (stats.preemptions > 100) == (every is not None)
    assert (stats.prefix_hit_tokens > 300) == (every is None)
    for difference in found.values():
        assert difference.tokens == sum(len(each.output) for each in decodings)
        assert difference.near_ties <= 0.1 * difference.tokens
        assert difference.largest_logprob_difference <= TOLERANCE
        assert difference.mismatches == difference.misranked == 0
