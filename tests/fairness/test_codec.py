import json
from dataclasses import fields
from enum import StrEnum
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairness.codec import (
    CodecError,
    decode_config,
    decode_event,
    encode_config,
    encode_event,
    is_input,
    kind,
)
from fairness.events import Effect, Enqueued, Granted, Input, Refused
from fairness.types import (
    GrantReason,
    PoolConfig,
    Prices,
    RefusalReason,
    ReplicaCapacity,
    TenantTerms,
)

CLASSES = [*get_args(Input), *get_args(Effect)]
COUNTS = st.integers(1, 2**60)
TERMS = st.builds(TenantTerms, COUNTS, COUNTS, COUNTS, COUNTS)
CAPACITY = st.builds(
    lambda slots, tokens, block: ReplicaCapacity(slots, tokens + block, block),
    *(COUNTS, COUNTS, COUNTS),
)
VALUES = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: COUNTS,
    str: st.text(),
    TenantTerms: TERMS,
    ReplicaCapacity: CAPACITY,
}


def values_of(hint):
    if get_origin(hint) is tuple:
        return st.lists(COUNTS).map(tuple)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    if hint in VALUES:
        return VALUES[hint]
    return st.one_of(*(st.none() if one is type(None) else VALUES[one] for one in get_args(hint)))


def events_of(cls):
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: values_of(hints[field.name]) for field in fields(cls)})


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


@given(st.sampled_from(CLASSES).flatmap(events_of))
def test_every_event_comes_back_as_it_was(event):
    decoded = decode_event(through_json(encode_event(event)))
    assert decoded == event
    assert type(decoded) is type(event)
    assert encode_event(event)[:2] == [kind(event), event.now]


def test_inputs_are_told_from_effects():
    effects = {cls for cls in CLASSES if cls not in get_args(Input)}
    assert effects == set(get_args(Effect))
    assert is_input(Enqueued(1.0, "r", "t", TenantTerms(1, 1, 1, 1), 1, 1))
    assert not is_input(Granted(1.0, "r", "t", "x", 1, GrantReason.TURN, 0, 0))


@pytest.mark.parametrize("refusal", list(RefusalReason))
def test_optional_fields_keep_their_absence(refusal):
    for after in (None, 1.5):
        event = Refused(2.0, "r", "t", refusal, after)
        assert decode_event(through_json(encode_event(event))) == event


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "begins with its kind"),
        ([], "begins with its kind"),
        ([1], "begins with its kind"),
        (["Gone", 1.0], "no event of kind 'Gone'"),
        (["Ticked"], "Ticked: wants a list of 1 fields"),
        (["Ticked", 1.0, 2], "Ticked: wants a list of 1 fields"),
        (["Ticked", "1"], "Ticked.now: '1' is no number"),
        (["Ticked", True], "Ticked.now: True is no number"),
        (["Ticked", float("nan")], "Ticked.now: nan is not finite"),
        (["Emitted", 1.0, "r", 1.0], "Emitted.output_tokens: 1.0 is no integer"),
        (["Emitted", 1.0, "r", True], "Emitted.output_tokens: True is no integer"),
        (["Emitted", 1.0, None, 1], "Emitted.request: None is no string"),
        (["ReplicaUp", 1.0, "r", [1, 64]], "ReplicaUp.capacity: ReplicaCapacity: wants a list"),
        (["ReplicaUp", 1.0, "r", [0, 64, 16]], "ReplicaCapacity: a replica holds"),
        (["TenantChanged", 1.0, "t", [0, 1, 1, 1]], "a weight is at least"),
        (["Missed", 1.0, "r", "t", "tired"], "Missed.reason: 'tired' is none of budget"),
        (["Missed", 1.0, "r", "t", ["budget"]], "is none of budget"),
        (["Enqueued", 1.0, "r", "t", [1, 1, 1, 1], 0, 1, 1, 0, []], "Enqueued: a request has"),
        (["Enqueued", 1.0, "r", "t", [1, 1, 1, 1], 1, 1, 1, 0, 7], "Enqueued.prefix: 7 is no list"),
        (["Enqueued", 1.0, "r", "t", [1, 1, 1, 1], 1, 1, 1, 0, [""]], "'' is no integer"),
    ],
)
def test_what_is_no_event_is_refused_by_name(value, words):
    with pytest.raises(CodecError) as refused:
        decode_event(value)
    assert words in str(refused.value)


def test_settings_come_back_as_they_were():
    config = PoolConfig(prices=Prices(5, 2, 9), ttl_s=7.5, max_passes=1, t_max_s=3.0)
    assert decode_config(through_json(encode_config(config))) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ttl_s": "long"}, "PoolConfig.ttl_s: 'long' is no number"),
        ({"prices": [1, 2, 3]}, "Prices: [1, 2, 3] is no object"),
        ({"prices": {"uncached": 1, "cached": 1}}, "Prices.output is missing"),
        ({"colour": 1}, "PoolConfig.colour is unknown"),
    ],
)
def test_what_are_no_settings_is_refused_by_name(change, words):
    with pytest.raises(CodecError) as refused:
        decode_config(encode_config(PoolConfig()) | change)
    assert words in str(refused.value)
    with pytest.raises(CodecError):
        decode_config([])
