"""The rules of a request against a naive twin, token by token, and what contradictions mean."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.request import SamplingParams
from engine.runner.logits import process, without_nan

VOCABULARY = 12


def completes(word, output, token):
    """Whether the output would end in this word if the token came next."""
    return (*output, token)[-len(word) :] == word


def penalized(logit, token, params, prompt, output):
    if token in prompt or token in output:
        factor = np.float32(params.repetition_penalty)
        logit = logit / factor if logit > 0 else logit * factor
    count = output.count(token)
    logit -= np.float32(params.frequency_penalty) * np.float32(count)
    return logit - np.float32(params.presence_penalty) * np.float32(count > 0)


def naive_process(logits, params, prompt, output):
    """The rules in order for each token; None where the token is forbidden."""
    allowed = params.allowed_token_ids
    early = len(output) < params.min_tokens
    result = []
    for token, raw in enumerate(logits):
        if (
            (allowed is not None and token not in allowed)
            or any(completes(word, output, token) for word in params.bad_words)
            or (early and token in params.stop_token_ids)
        ):
            result.append(None)
            continue
        logit = np.float32(raw)
        for biased, bias in params.logit_bias:
            if biased == token:
                logit += np.float32(bias)
        result.append(float(penalized(logit, token, params, prompt, output)))
    if all(value is None for value in result):
        keep = set(range(len(logits)) if allowed is None else allowed)
        return [raw if token in keep else None for token, raw in enumerate(logits)]
    return result


TOKENS = st.integers(0, VOCABULARY - 1)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    min_tokens=st.integers(0, 4),
    stop_token_ids=st.frozensets(TOKENS | st.just(VOCABULARY + 5), max_size=VOCABULARY),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.3, 2.0]),
    frequency_penalty=st.sampled_from([0.0, -2.0, 0.3, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3, 2.0]),
    logit_bias=st.dictionaries(TOKENS, st.floats(-100, 100), max_size=4).map(
        lambda bias: tuple(bias.items())
    ),
    allowed_token_ids=st.none() | st.lists(TOKENS, min_size=1, max_size=5).map(tuple),
    bad_words=st.lists(
        st.lists(TOKENS, min_size=1, max_size=3).map(tuple), max_size=VOCABULARY
    ).map(tuple),
)


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=VOCABULARY, max_size=VOCABULARY),
    params=PARAMS,
    prompt=st.lists(TOKENS, max_size=6).map(tuple),
    output=st.lists(TOKENS, max_size=6),
)
def test_equals_its_naive_twin(logits, params, prompt, output):
    values = np.array(logits, np.float32)
    before = values.copy()
    expected = naive_process(logits, params, prompt, tuple(output))
    got = process(values, params, prompt, output)
    np.testing.assert_array_equal(values, before)
    np.testing.assert_allclose(
        got, [-math.inf if value is None else value for value in expected], rtol=1e-5, atol=1e-5
    )


def processed(logits, prompt=(), output=(), **rules):
    values = np.array(logits, np.float32)
    return process(values, SamplingParams(1, **rules), prompt, output).tolist()


def test_without_rules_nothing_is_copied():
    values = np.zeros(4, np.float32)
    params = SamplingParams(1, min_tokens=1, stop_token_ids=frozenset({2}))
    assert process(values, params, (1,), (3,)) is values


INF = math.inf


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 3.0, 0.0]),
        ({"frequency_penalty": 0.5}, [2.0, -2.0, 3.0, 0.0]),
        ({"presence_penalty": 0.5}, [2.0, -1.5, 3.0, 0.0]),
        ({"logit_bias": ((2, -100.0), (3, 1.5))}, [2.0, -1.0, -97.0, 1.5]),
        ({"allowed_token_ids": (3, 1)}, [-INF, -1.0, -INF, 0.0]),
        ({"bad_words": ((2,), (1, 0), (0, 3))}, [-INF, -1.0, -INF, 0.0]),
        ({"min_tokens": 3, "stop_token_ids": frozenset({2, 9})}, [2.0, -1.0, -INF, 0.0]),
        ({"min_tokens": 2, "stop_token_ids": frozenset({2, 9})}, [2.0, -1.0, 3.0, 0.0]),
    ],
)
def test_each_rule_alone(rules, expected):
    """Prompt 0; output 1, 1: repetition sees both, the other penalties the output."""
    assert processed([2, -1, 3, 0], prompt=(0,), output=[1, 1], **rules) == expected


def test_a_bias_is_penalized_too():
    got = processed([1, 0], output=[0], logit_bias=((0, 3.0),), repetition_penalty=2.0)
    assert got == [2.0, 0.0]


def test_a_bad_word_begun_by_the_prompt_is_not_the_outputs():
    rules = {"bad_words": ((1, 0),)}
    assert processed([2, 1], prompt=(1,), **rules) == [2.0, 1.0]
    assert processed([2, 1], prompt=(1,), output=[1], **rules) == [-INF, 1.0]


@pytest.mark.parametrize(
    ("logits", "rules", "expected"),
    [
        ([2, 1, 0], {"bad_words": ((0,), (1,), (2,))}, [2, 1, 0]),
        ([2, 1, 0], {"allowed_token_ids": (1, 2), "bad_words": ((1,), (2,))}, [-INF, 1, 0]),
        ([-INF, -INF, 0], {"allowed_token_ids": (0, 1)}, [0, 0, -INF]),
        ([2, 1], {"min_tokens": 1, "stop_token_ids": frozenset({0, 1})}, [2, 1]),
        ([-INF, -INF], {"bad_words": ((0,),)}, [-INF, -INF]),
    ],
)
def test_where_rules_leave_nothing_the_allow_list_stands(logits, rules, expected):
    assert processed(logits, **rules) == expected


@pytest.mark.parametrize("rules", [{"repetition_penalty": 1e-30}, {"repetition_penalty": 1e30}])
def test_past_the_largest_float_is_infinity(rules):
    got = processed([3e38, -3e38, INF, -INF, 0], prompt=range(5), **rules)
    assert not any(math.isnan(value) for value in got)
    assert got[2:] == [INF, -INF, 0]


@pytest.mark.parametrize(
    "rules",
    [{"allowed_token_ids": (3,)}, {"bad_words": ((3,),)}, {"logit_bias": ((3, 1.0),)}],
)
def test_an_id_outside_the_vocabulary_is_an_error(rules):
    with pytest.raises(IndexError):
        processed([1, 2, 3], **rules)


def test_nan_counts_as_impossible():
    values = np.array([math.nan, 1, -INF], np.float32)
    assert without_nan(values).tolist() == [-INF, 1, -INF]
    assert np.isnan(values[0])
    assert without_nan(values[1:]) is not values
    clean = np.array([[1, 2], [3, INF]], np.float32)
    assert without_nan(clean) is clean


def test_every_field_that_is_a_rule_has_one_here():
    """A new field of SamplingParams must be thought of: rule, choice, or none of this module's."""
    rules = {
        "allowed_token_ids", "bad_words", "frequency_penalty", "logit_bias", "min_tokens",
        "presence_penalty", "repetition_penalty", "stop_token_ids",
    }  # fmt: skip
    others = {
        "logprobs", "max_tokens", "min_p", "prompt_logprobs", "seed", "temperature", "top_k",
        "top_p",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(SamplingParams)} == rules | others
