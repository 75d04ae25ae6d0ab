"""Tokens and log-probabilities under every sampling option against transformers' own.

The same sixteen requests, each with other options, in every way an engine may come to compute
them. The full matrix on the default model is `tests/prove/test_model_equivalence.py`.
"""

import dataclasses

import numpy as np
import pytest
import torch

from engine.core.engine_core import CoreConfig
from engine.core.preemption import PreemptEvery
from engine.core.request import FinishReason, SamplingParams
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner
from engine.runner.sampler import candidates, process
from tests.support.decoding import TOLERANCE, Engine, decode, distribution, every_option
from tests.support.tiny_models import tiny_llama

BLOCK = 16
VOCABULARY = 300
NUM_TOKENS = 12
LENGTHS = [1, 5, 15, 16, 17, 31, 33, 47, 64, 65, 90, 100, 3, 16, 48, 130]


def engine(model, *, num_blocks=96, budget=512, seqs=16, cache=True, preemption=None):
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
    return Engine(runner, config, preemption)


BITING = {name for each in every_option(range(12)) for name in each} - {"temperature"} | {"seed"}
# A request that wants its prompt scored computes all of it: a few do, the others may hit.
SCORES = [(5, None), (VOCABULARY, 3), (0, None), (2, 0), (None, None), (1, None), (20, 20)]


@pytest.fixture(scope="module")
def reference():
    return tiny_llama()


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, VOCABULARY, length).tolist() for length in LENGTHS]
    prompts[9][:48] = prompts[8][:48]  # the prefix cache has something to share
    return prompts


@pytest.fixture(scope="module")
def decodings(reference, prompts):
    """What the reference makes of the sixteen requests."""
    result = []
    for index, prompt in enumerate(prompts):
        plain = SamplingParams(NUM_TOKENS, temperature=0.0)
        greedy = decode(reference, prompt, plain).output
        logprobs, prompt_logprobs = SCORES[index % len(SCORES)]
        params = dataclasses.replace(
            plain,
            seed=index,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            **every_option(greedy)[index],
        )
        result.append(decode(reference, prompt, params))
    return result


@pytest.fixture(scope="module")
def model(reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    reference.save_pretrained(folder)
    return load_model(folder, threads=2)


def assert_equal(difference):
    assert difference.mismatches == 0, difference
    assert difference.misranked == 0, difference
    assert difference.largest_logprob_difference <= TOLERANCE, difference
    assert difference.near_ties <= 0.05 * difference.tokens, difference
    assert difference.tokens > 0


@pytest.mark.parametrize("field", sorted(BITING))
def test_the_options_bite(reference, decodings, field):
    """Without any one of them something else would follow: none is asked for in vain."""
    default = SamplingParams.__dataclass_fields__[field].default
    assert any(
        decode(reference, each.prompt, dataclasses.replace(each.params, **{field: default})).output
        != each.output
        for each in decodings
        if getattr(each.params, field) != default
    )


def test_some_stop_and_some_run_on(decodings):
    assert {each.finish_reason for each in decodings} == {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
def test_sixteen_at_a_time(model, decodings, budget, cache):
    engine_ = engine(model, budget=budget, cache=cache)
    assert_equal(engine_.difference(decodings))
    cold = engine_.core.stats().prefix_hit_tokens
    assert_equal(engine_.difference(decodings))  # warm, when there is a cache
    hits = engine_.core.stats().prefix_hit_tokens - cold
    lengths = [len(each.prompt) for each in decodings if each.params.prompt_logprobs is None]
    assert hits == (sum((length - 1) // BLOCK * BLOCK for length in lengths) if cache else 0)


def test_alone(model, decodings):
    assert_equal(engine(model, seqs=1).difference(decodings))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
def test_with_forced_preemption(model, decodings, budget, every):
    engine_ = engine(model, budget=budget, cache=False, preemption=PreemptEvery(every))
    assert_equal(engine_.difference(decodings))
    assert engine_.core.stats().preemptions > 2 * len(decodings)


def test_with_a_pool_too_small_for_all(model, decodings):
    engine_ = engine(model, num_blocks=14, budget=32)
    assert_equal(engine_.difference(decodings))


def test_the_comparison_can_fail(model, decodings):
    """The control: other weights, and a rule that the engine is not told of."""
    other = decode(tiny_llama(seed=6), decodings[6].prompt, decodings[6].params)
    difference = engine(model).difference([other])
    assert difference.mismatches > 0
    assert difference.largest_logprob_difference > 1
    untold = dataclasses.replace(
        decodings[6], params=dataclasses.replace(decodings[6].params, logit_bias=())
    )
    assert engine(model).difference([untold]).mismatches > 0


@pytest.mark.parametrize("index", range(len(LENGTHS)))
def test_the_distribution_is_transformers(decodings, index):
    """On the very same logits, at every position: also for requests that then take the largest."""
    decoding = decodings[index]
    params = decoding.params
    if params.temperature == 0:
        params = dataclasses.replace(params, temperature=0.8)
    for at in range(len(decoding.output)):
        logits, output = decoding.logits[len(decoding.prompt) - 1 + at], decoding.output[:at]
        kept, weights = candidates(process(logits.numpy(), params, decoding.prompt, output), params)
        ours = torch.zeros(len(logits), dtype=torch.float64)
        ids = np.arange(len(logits)) if kept is None else kept
        ours[ids] = torch.from_numpy(weights[ids] / weights[ids].sum())
        theirs = distribution(logits, params, decoding.prompt, output)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
def test_b7_preemption_changes_no_answer(model, decodings, budget, every):
    """Left to itself: tokens, seed stream, penalties and stops as without preemption."""
    requests = [(decoding.prompt, decoding.params) for decoding in decodings]
    calm = engine(model, budget=budget).answer(*requests)
    disturbed = engine(model, budget=budget, cache=False, preemption=PreemptEvery(every)).answer(
        *requests
    )
    for expected, got in zip(calm, disturbed, strict=True):
        assert got.tokens == expected.tokens
        assert got.finish_reason is expected.finish_reason
        assert list(got.prompt_logprobs) == list(expected.prompt_logprobs)


@pytest.mark.parametrize("budget", [512, 32], ids=["whole", "chunks of 32"])
def test_a7_scores_of_a_prompt_are_the_same_after_a_warm_cache(model, prompts, budget):
    """Every position is computed again, by the same arithmetic, and no hit is counted."""
    prompt = prompts[11]
    plain = SamplingParams(4, temperature=0.0, logprobs=2)
    scored = dataclasses.replace(plain, prompt_logprobs=3)
    engine_ = engine(model, budget=budget)
    (cold,) = engine_.answer((prompt, scored))
    engine_.answer((prompt, plain))
    before = engine_.core.stats()
    assert before.prefix_hit_tokens == 96
    (warm,) = engine_.answer((prompt, scored))
    after = engine_.core.stats()
    assert warm == cold
    assert list(warm.prompt_logprobs) == list(range(1, len(prompt)))
    assert after.prefix_hit_tokens == before.prefix_hit_tokens
    assert after.prefix_query_tokens == before.prefix_query_tokens


class PreemptAt:
    """Preempts everyone at these steps, also in the middle of a prompt."""

    def __init__(self, *steps):
        self._steps = steps

    def victims(self, step, running):
        return list(running) if step in self._steps else []


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_a_prompt_preempted_while_it_is_computed_is_scored_once(model, decodings, cache):
    """After 64 of 130 tokens, again after 96, and while it decodes."""
    decoding = dataclasses.replace(
        decodings[15],
        params=dataclasses.replace(decodings[15].params, logprobs=4, prompt_logprobs=4),
    )
    engine_ = engine(model, budget=32, cache=cache, preemption=PreemptAt(3, 7, 14))
    assert_equal(engine_.difference([decoding]))
    assert engine_.core.stats().preemptions == 3
