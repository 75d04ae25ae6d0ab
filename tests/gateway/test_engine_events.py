"""What an engine streams is read strictly: what is not the protocol ends the request, no more."""

import json

import pytest

from gateway.engines.events import EventReader
from gateway.engines.port import EngineBroken, ScoredToken

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
DONE = b"data: [DONE]\n\n"
LOGPROBS = {
    "tokens": ["token_id:5", "token_id:6"],
    "token_logprobs": [None, -0.25],
    "top_logprobs": [None, {"token_id:6": -0.25, "token_id:9": -2}],
    "text_offset": [0, 1],
}


def choice(index=0, text="x", reason=None, **members):
    return {"index": index, "text": text, "finish_reason": reason} | members


def event(*choices, **members):
    return b"data: " + json.dumps({"choices": choices} | members).encode() + b"\n\n"


def read(*chunks, choices=1):
    reader = EventReader(choices)
    return [one for chunk in chunks for one in reader.feed(chunk)], reader


def test_choices_end_in_any_order_and_counts_are_the_requests():
    events, reader = read(
        event(choice(1), usage=USAGE),
        event(choice(1, "", "stop"), choice(0)),
        event(choice(0, "", "length")),
        event(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}),
        DONE,
        choices=2,
    )
    assert [(e.index, e.finish_reason) for e in events] == [
        (1, None),
        (1, "stop"),
        (0, None),
        (0, "length"),
        (None, None),
    ]
    assert (events[0].prompt_tokens, events[0].output_tokens, events[0].cached_tokens) == (
        5,
        2,
        None,
    )
    assert events[-1].cached_tokens == 4
    assert reader.done
    assert reader.failure is None


def test_log_probabilities_come_token_by_token():
    (one,), _ = read(event(choice(logprobs=LOGPROBS)))
    assert one.logprobs == (
        ScoredToken(5, None),
        ScoredToken(6, -0.25, ((6, -0.25), (9, -2.0))),
    )
    (bare,), _ = read(event(choice(logprobs=LOGPROBS | {"top_logprobs": None})))
    assert [scored.top for scored in bare.logprobs] == [(), ()]


@pytest.mark.parametrize(
    "broken",
    [
        event(choice(2)),
        event(choice(-1)),
        event(choice(True)),
        event(choice("0")),
        event(choice(None)),
        event(choice([])),
        event(choice(0, "", "stop")) * 2,
        event(choice(0, "", "stop")) + event(choice(0, "more")),
        event(choice(0, "", "content_filter")),
        event(choice(0, "", ["stop"])),
        event(choice(0, None)),
        event(choice(0, 5)),
        event({"index": 0, "text": "x"}),
        event("choice"),
        event(None),
        b'data: {"choices": null}\n\n',
        b'data: {"choices": {"index": 0}}\n\n',
        b"data: {}\n\n",
        b"data: []\n\n",
        b"data: 5\n\n",
        b"data: null\n\n",
        b"data: nonsense\n\n",
        b'data: {"choices": [], "usage": {"prompt_tokens": NaN}}\n\n',
        event(usage=5),
        event(usage=USAGE | {"completion_tokens": -1}),
        event(usage=USAGE | {"completion_tokens": 2.0}),
        event(usage=USAGE | {"completion_tokens": True}),
        event(usage={"prompt_tokens": 1}),
        event(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": "4"}}),
        event(choice(logprobs=[])),
        event(choice(logprobs={"tokens": ["token_id:5"]})),
        event(choice(logprobs=LOGPROBS | {"tokens": ["token_id:5"]})),
        event(choice(logprobs=LOGPROBS | {"tokens": ["the", "token_id:5"]})),
        event(choice(logprobs=LOGPROBS | {"tokens": ["token_id:-5", "token_id:5"]})),
        event(choice(logprobs=LOGPROBS | {"tokens": ["token_id:" + "9" * 5_000, "token_id:5"]})),
        event(choice(logprobs=LOGPROBS | {"tokens": [5, 6]})),
        event(choice(logprobs=LOGPROBS | {"token_logprobs": [True, -1]})),
        event(choice(logprobs=LOGPROBS | {"token_logprobs": ["x", -1]})),
        event(choice(logprobs=LOGPROBS | {"top_logprobs": [[1], None]})),
        event(choice(logprobs=LOGPROBS | {"top_logprobs": [{"the": -1}, None]})),
        DONE,
        event(choice(0, "", "stop")) + DONE,
        event(choice(0, "x", "abort"), usage=USAGE),
        b'data: {"error": {"message": "no"}}\n\n',
    ],
)
def test_what_is_not_the_protocol_is_a_broken_engine(broken):
    _, reader = read(broken, choices=2)
    assert isinstance(reader.failure, EngineBroken)
    assert not reader.done


def test_what_came_before_a_failure_is_delivered_and_counted():
    events, reader = read(event(choice()) + event(choice(0, "x", "abort"), usage=USAGE))
    assert [one.output_tokens for one in events] == [None, 2]
    assert events[-1].index is None
    assert isinstance(reader.failure, EngineBroken)
