"""A client's wishes in the core's terms: each arrives, and what cannot be is named."""

from dataclasses import fields

import pytest

from engine.core.request import SamplingParams
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import Sampling
from engine.server.params import Room, sampling_params

ROOM = Room(prompt_tokens=10, max_tokens=100, prompt_param="prompt")
GIVEN = {
    "max_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.4,
    "top_k": 3,
    "min_p": 0.2,
    "min_tokens": 2,
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "repetition_penalty": 1.3,
    "logit_bias": ((1, 2.0),),
    "logprobs": 4,
    "prompt_logprobs": 5,
}


def test_every_parameter_of_the_core_can_be_asked_for(text_model):
    wanted = Sampling(**GIVEN, seed=11, stop_token_ids=(7,), allowed_token_ids=(9, 3, 9))
    (params,) = sampling_params(wanted, ((5, 6),), text_model, ROOM)
    assert {name: getattr(params, name) for name in GIVEN} == GIVEN
    assert params.seed == 11
    assert params.stop_token_ids == {7} | text_model.eos_token_ids
    assert params.allowed_token_ids == (3, 9)
    assert params.bad_words == ((5, 6),)
    default = SamplingParams(max_tokens=1)
    for field in fields(SamplingParams):
        assert getattr(params, field.name) != getattr(default, field.name), field.name


def test_children_differ_by_their_seed_alone(text_model):
    children = sampling_params(Sampling(n=3, seed=-2), (), text_model, ROOM)
    assert [child.seed for child in children] == [2**64 - 2, 2**64 - 1, 0]
    assert len({(c.max_tokens, c.temperature, c.stop_token_ids) for c in children}) == 1
    first, second = sampling_params(Sampling(n=2), (), text_model, ROOM)
    assert second.seed == (first.seed + 1) % 2**64  # drawn once


def test_what_the_context_has_room_for_is_the_limit(text_model):
    for wanted, got in ((None, 90), (50, 50), (10**6, 90)):
        (params,) = sampling_params(Sampling(max_tokens=wanted), (), text_model, ROOM)
        assert params.max_tokens == got
    (params,) = sampling_params(Sampling(min_tokens=500), (), text_model, ROOM)
    assert params.min_tokens == 90
    with pytest.raises(InvalidRequest) as caught:
        sampling_params(Sampling(), (), text_model, Room(100, 100, "messages"))
    assert caught.value.param == "messages"


def test_ignoring_the_end_leaves_the_other_stop_tokens(text_model):
    wanted = Sampling(ignore_eos=True, stop_token_ids=(7,))
    assert sampling_params(wanted, (), text_model, ROOM)[0].stop_token_ids == {7}


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (Sampling(), None),
        (Sampling(logprobs=3), None),
        (Sampling(echo=True), None),
        (Sampling(echo=True, logprobs=0), 0),
        (Sampling(echo=True, logprobs=3, prompt_logprobs=1), 3),
        (Sampling(echo=True, logprobs=0, prompt_logprobs=2), 2),
        (Sampling(prompt_logprobs=0), 0),
    ],
)
def test_a_prompt_is_scored_for_the_one_who_wants_more(text_model, wanted, number):
    assert sampling_params(wanted, (), text_model, ROOM)[0].prompt_logprobs == number


async def test_bad_words_reach_the_core_in_both_spellings(engine, client, monkeypatch, text_model):
    seen, add = [], engine.core.add

    def noted(*requests):
        seen.extend(requests)
        add(*requests)

    monkeypatch.setattr(engine.core, "add", noted)
    await client.completion("x", max_tokens=1, bad_words=["no", " way"])
    spelled = [bytes(b for i in ids for b in text_model.token_bytes(i)) for ids in bad(seen)]
    assert spelled == [b"no", b" no", b"way", b" way"]


def bad(requests):
    return requests[0].sampling.bad_words
