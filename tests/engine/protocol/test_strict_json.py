"""One strict reading of a body: what any JSON parser could read otherwise is refused."""

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.protocol.errors import InvalidRequest
from engine.protocol.strict_json import MAX_DEPTH, MAX_NODES, parse_object

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=5), st.booleans())
def test_what_is_sound_is_read_as_it_was_written(value, ascii_only):
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": }',
        b"{'a': 1}",
        b'{"a": 1} x',
        b'{"a": 1}{"a": 1}',
        b'{"a": 1,}',
        b"\xef\xbb\xbf{}",
        b"[]",
        b'"text"',
        b"1",
        b"null",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": -1e400}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00 \\ud800"}',
        b'{"\\ud800": 1}',
        b'{"a": ["\\u0000"]}',
        b'{"\\u0000": 1}',
        b'{"a": "\x00"}',
        b'{"a": "line\nbreak"}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b'{"a": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
        b'{"a": ' + b"[" * 200_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
    ],
)
def test_what_is_not_is_refused_without_a_code(body):
    with pytest.raises(InvalidRequest) as refusal:
        parse_object(body)
    assert refusal.value.code is None
    assert refusal.value.param is None


def test_nesting_is_allowed_up_to_the_limit_and_not_beyond():
    deepest = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert parse_object(deepest)
    with pytest.raises(InvalidRequest, match="nested"):
        parse_object(deepest.replace(b"[]", b"[[]]"))


def test_many_brackets_side_by_side_are_not_depth():
    assert parse_object(b'{"a": [' + b",".join([b"[]"] * 1_000) + b"]}")
    assert parse_object(json.dumps({"a": "[" * 1_000}).encode())


def test_text_hidden_at_the_deepest_level_is_still_checked():
    inner = MAX_DEPTH - 1
    with pytest.raises(InvalidRequest, match="NUL"):
        parse_object(b'{"a":' + b"[" * inner + b'"\\u0000"' + b"]" * inner + b"}")


def test_a_pair_of_surrogates_is_one_character():
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


@given(st.binary(max_size=200))
@example(b'{"a": 1e309}')
def test_any_bytes_give_an_object_or_a_refusal(body):
    with contextlib.suppress(InvalidRequest):
        assert isinstance(parse_object(body), dict)


@given(st.lists(st.sampled_from([*'{}[]",:\\u0d8aeE+-.9 ', "null", "NaN", '"a":']), max_size=40))
def test_any_json_like_text_gives_an_object_of_finite_sound_text_or_a_refusal(pieces):
    try:
        value = parse_object("".join(pieces).encode())
    except InvalidRequest:
        return
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [%b[]]}' % (b"[]," * MAX_NODES),
        b'{"a": [%b{}]}' % (b"{}," * MAX_NODES),
        b"{%b}" % b",".join(b'"%d":1' % number for number in range(MAX_NODES + 1)),
        b'{"a": "\\\\", "b": [%b[]]}' % (b"[]," * MAX_NODES),
    ],
    ids=["arrays", "objects", "members", "after an escape"],
)
def test_more_nodes_than_a_request_can_need_are_refused_before_they_are_made(body):
    with pytest.raises(InvalidRequest, match="objects, arrays and members"):
        parse_object(body)


@pytest.mark.parametrize("text", ["[{:", '\\"[', "\\\\\\n:"])
def test_brackets_and_colons_of_text_do_not_count(text):
    value = {"prompt": text * MAX_NODES, "ids": [1] * (2 * MAX_NODES)}
    assert parse_object(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "body", [b'"' + b'\\"' * 10**6, b'{"a' + b"\\" * 10**6, b'{"a":"[' * 10**5]
)
def test_strings_that_never_end_are_told_in_one_pass(body):
    with pytest.raises(InvalidRequest):
        parse_object(body + b"[" * (MAX_NODES + 1))
