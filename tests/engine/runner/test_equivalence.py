"""The engine's logits against transformers' on the same weights, in fp32.

Prompts straddle pages and chunks. The full matrix on the default model is
`tests/prove/test_model_equivalence.py`.
"""

import numpy as np
import pytest

from engine.core.engine_core import CoreConfig
from engine.core.preemption import PreemptEvery
from engine.core.request import SamplingParams
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner
from tests.support.decoding import Engine, decode
from tests.support.equivalence import (
    LOGIT_TOLERANCE,
    Case,
    Comparison,
    reference_case,
    reference_from_gguf,
)
from tests.support.tiny_models import round_weights, tiny_llama, write_gguf

BLOCK = 16


def engine(model, *, num_blocks=64, budget=512, seqs=16, cache=True, preemption=None):
    runner = DecoderRunner(model, num_blocks, BLOCK, seqs, budget)
    config = CoreConfig(
        num_blocks=num_blocks,
        max_model_len=model.config.context_length,
        model_digest=model.digest,
        block_size=BLOCK,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        prefix_cache=cache,
    )
    return Comparison(runner, config, preemption)


def assert_equal(difference):
    assert difference.largest_logit_difference <= LOGIT_TOLERANCE, difference
    assert difference.mismatches_beyond_gap == 0, difference


def random_prompts(lengths, vocab_size):
    rng = np.random.default_rng(3)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    reference = tiny_llama()
    reference.save_pretrained(folder)
    prompts = random_prompts([1, 5, 15, 16, 17, 31, 33, 47, 64, 65, 90, 100, 3, 16, 48, 130], 300)
    # A shared beginning, so that the prefix cache has something to share.
    prompts[9][:48] = prompts[8][:48]
    return load_model(folder, threads=2), [reference_case(reference, p, 12) for p in prompts]


@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_sixteen_at_a_time(tiny, budget, cache):
    model, cases = tiny
    comparison = engine(model, num_blocks=96, budget=budget, cache=cache)
    assert_equal(comparison.run(cases))
    assert_equal(comparison.run(cases))  # warm, when there is a cache
    hits = comparison.core.stats().prefix_hit_tokens
    assert hits > 500 if cache else hits == 0
    comparison.core.check_integrity()


def test_alone(tiny):
    model, cases = tiny
    comparison = engine(model, seqs=1)
    for case in cases:
        assert_equal(comparison.run([case]))


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
def test_with_a_preemption_forced_every_three_steps(tiny, budget, cache):
    model, cases = tiny
    comparison = engine(
        model, num_blocks=96, budget=budget, cache=cache, preemption=PreemptEvery(3)
    )
    assert_equal(comparison.run(cases))
    assert comparison.core.stats().preemptions > len(cases)


def test_with_a_pool_too_small_for_all(tiny):
    model, cases = tiny
    comparison = engine(model, num_blocks=14, budget=32)
    assert_equal(comparison.run(cases))


@pytest.mark.parametrize(
    "overrides",
    [
        {"num_attention_heads": 4, "num_key_value_heads": 4},
        {"num_attention_heads": 6, "num_key_value_heads": 1},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    ],
    ids=["no sharing", "one key head", "tied", "other rope base"],
)
def test_other_shapes(overrides, tmp_path):
    reference = tiny_llama(seed=1, **overrides)
    reference.save_pretrained(tmp_path / "model")
    cases = [reference_case(reference, p, 6) for p in random_prompts([7, 16, 40], 300)]
    assert_equal(engine(load_model(tmp_path / "model", threads=2)).run(cases))


@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_from_gguf(quantization, tmp_path):
    reference = tiny_llama(seed=2, num_attention_heads=8)
    round_weights(reference, quantization)
    write_gguf(reference, tmp_path / "model.gguf", quantization)
    cases = [reference_case(reference, p, 6) for p in random_prompts([7, 16, 40], 300)]
    assert_equal(engine(load_model(tmp_path / "model.gguf", threads=2)).run(cases))


def test_the_comparison_can_fail(tmp_path):
    """The control: other weights are far beyond every tolerance."""
    tiny_llama(seed=5).save_pretrained(tmp_path / "model")
    cases = [reference_case(tiny_llama(seed=6), p, 6) for p in random_prompts([7, 16, 40], 300)]
    difference = engine(load_model(tmp_path / "model", threads=2)).run(cases)
    assert difference.largest_logit_difference > 1
    assert difference.mismatches_beyond_gap > 0


@pytest.fixture(scope="module")
def default_model(smollm2):
    """The model, and what the reference makes of four prompts: two greedily, two by chance."""
    reference = reference_from_gguf(smollm2)
    decodings = [
        decode(reference, prompt, SamplingParams(16, logprobs=20, seed=index, **options))
        for index, (prompt, options) in enumerate(
            zip(random_prompts([5, 33, 120, 200], 49152), DEFAULT_MODEL_OPTIONS, strict=True)
        )
    ]
    return load_model(smollm2, threads=2), decodings


DEFAULT_MODEL_OPTIONS = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "prompt_logprobs": 5},
    {"temperature": 0.0, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 1.0, "min_p": 0.02, "top_k": 200, "prompt_logprobs": 0},
]


@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
def test_the_default_model(default_model, budget):
    """Every logit; then tokens and log-probabilities, cold and warm."""
    model, decodings = default_model
    comparison = engine(model, budget=budget)
    assert_equal(comparison.run([Case.of(decoding) for decoding in decodings]))
    whole = Engine(comparison.runner, comparison.core.config)
    for _ in ("cold", "warm"):
        difference = whole.difference(decodings)
        assert difference.largest_logprob_difference <= LOGIT_TOLERANCE, difference
        assert difference.mismatches == difference.misranked == 0, difference
        assert difference.scored_positions == 4 * 16 + 32 + 199
    assert whole.core.stats().prefix_hit_tokens > 100
