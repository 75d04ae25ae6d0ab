"""Parallel samples of one prompt on a real model: each is what it would have been alone."""

import dataclasses

import numpy as np
import pytest

from engine.core.engine_core import CoreConfig
from engine.core.preemption import PreemptEvery
from engine.core.request import SamplingParams
from engine.model.load import load_model
from engine.runner.decoder_runner import DecoderRunner
from tests.support.decoding import Engine
from tests.support.tiny_models import tiny_llama

BLOCK = 16
NUM_TOKENS = 18  # from any prompt, over at least one block boundary
OPTIONS = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    "cuts": {"top_k": 40, "top_p": 0.95, "min_p": 0.01, "temperature": 0.8},
}
# Nothing to share; a partial tail block; the last token ends a block, then begins one.
LENGTHS = [1, 37, 48, 49]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_llama().save_pretrained(folder)
    return load_model(folder, threads=2)


def engine(model, *, cache=True, budget=512, seqs=16, num_blocks=64, every=None, wrap=None):
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
    return Engine(wrap(runner) if wrap else runner, config, every and PreemptEvery(every))


def prompt_of(length):
    return np.random.default_rng(length).integers(0, 300, length).tolist()


def children(count, **options):
    """The parameters of `count` samples: seed + index, as the server makes them."""
    params = SamplingParams(NUM_TOKENS, seed=77, logprobs=2, **options)
    return [dataclasses.replace(params, seed=params.seed + index) for index in range(count)]


@pytest.fixture(scope="module")
def assert_as_alone(model):
    """Compares samples with the answers to the same requests one after the other."""
    alone = engine(model, cache=False, seqs=1)
    known = {}

    def check(prompt, params, answers):
        requests = [(tuple(prompt), each) for each in params]
        missing = [request for request in requests if request not in known]
        known.update(zip(missing, alone.answer(*missing), strict=True))
        for request, answer in zip(requests, answers, strict=True):
            expected = known[request]
            assert answer.tokens == expected.tokens
            assert answer.finish_reason is expected.finish_reason
            assert [each.logprob for each in answer.logprobs] == pytest.approx(
                [each.logprob for each in expected.logprobs], abs=1e-3
            )

    return check


@pytest.mark.parametrize(
    ("length", "options"),
    [*((length, "plain") for length in LENGTHS), (37, "penalties"), (48, "cuts")],
)
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_d1_each_of_four_samples_equals_its_solo_run(
    model, assert_as_alone, cache, length, options
):
    prompt, params = prompt_of(length), children(4, **OPTIONS[options])
    engine_ = engine(model, cache=cache)
    answers = engine_.samples(prompt, *params)
    assert len({tuple(answer.tokens) for answer in answers}) == 4
    assert_as_alone(prompt, params, answers)
    # The prompt was computed once; then each further sample took its last token again.
    assert engine_.core.stats().computed_tokens == length + 3 + 4 * (NUM_TOKENS - 1)
    assert [answer.tokens for answer in engine_.samples(prompt, *params)] == [
        answer.tokens for answer in answers
    ]


@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("every", [1, 3])
def test_d1_with_forced_preemption(model, assert_as_alone, cache, every):
    prompt, params = prompt_of(37), children(4, **OPTIONS["penalties"])
    engine_ = engine(model, cache=cache, budget=32, every=every)
    assert_as_alone(prompt, params, engine_.samples(prompt, *params))
    assert engine_.core.stats().preemptions > 4


def test_d2_more_samples_than_places(model, assert_as_alone):
    prompt, params = prompt_of(37), children(7)
    engine_ = engine(model, seqs=2, budget=32, num_blocks=12)
    assert_as_alone(prompt, params, engine_.samples(prompt, *params))


class WithoutCopies:
    """A runner that forgets to copy the block that two samples would write."""

    def __init__(self, runner):
        self._runner = runner

    def execute(self, batch):
        return self._runner.execute(dataclasses.replace(batch, copies=()))


@pytest.mark.parametrize("length", [37, 48])
def test_d4_the_copy_is_what_keeps_them_apart(model, length):
    """The control: without it, samples read a tail block that nobody wrote for them."""
    prompt, params = prompt_of(length), children(4)
    good = engine(model, cache=False).samples(prompt, *params)
    bad = engine(model, cache=False, wrap=WithoutCopies).samples(prompt, *params)
    assert bad[0].tokens == good[0].tokens
    assert all(theirs.tokens != ours.tokens for theirs, ours in zip(bad[1:], good[1:], strict=True))


def test_a_sample_that_ends_early_changes_no_other(model, assert_as_alone):
    """The blocks it shared stay with those that go on."""
    prompt, params = prompt_of(37), children(4)
    first = engine(model).samples(prompt, *params)[0].tokens
    params[0] = dataclasses.replace(params[0], stop_token_ids=frozenset(first[2:3]))
    answers = engine(model).samples(prompt, *params)
    assert len(answers[0].tokens) <= 3
    assert_as_alone(prompt, params, answers)


def test_prompt_scores_come_once_for_all_samples(model, assert_as_alone):
    prompt = prompt_of(37)
    params = [dataclasses.replace(each, prompt_logprobs=2) for each in children(3)]
    answers = engine(model).samples(prompt, *params)
    assert_as_alone(prompt, params, answers)
    (alone,) = engine(model).answer((prompt, params[0]))
    assert answers[0].prompt_logprobs == alone.prompt_logprobs
    assert list(alone.prompt_logprobs) == list(range(1, len(prompt)))
    assert all(not answer.prompt_logprobs for answer in answers[1:])
