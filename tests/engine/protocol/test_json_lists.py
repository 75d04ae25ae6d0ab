"""Lists that come in pieces are, once written, the lists strung together."""

import json

import orjson
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol.json_lists import JsonLists

ITEMS = st.lists(
    st.none()
    | st.integers(-9, 9)
    | st.text(max_size=3)
    | st.dictionaries(st.text(max_size=2), st.floats(allow_nan=False, allow_infinity=False)),
    max_size=3,
)
PIECES = st.lists(st.tuples(ITEMS, ITEMS), min_size=1, max_size=4)


def lists_of(pieces):
    lists = JsonLists()
    for left, right in pieces:
        lists.append({"left": left, "refusal": None, "right": right})
    return lists


@given(before=PIECES, after=PIECES)
def test_pieces_read_like_one_object(before, after):
    lists = lists_of(before)
    lists.extend(lists_of(after))
    lefts, rights = zip(*before, *after, strict=True)
    assert json.loads(orjson.dumps(lists.whole())) == {
        "left": [item for piece in lefts for item in piece],
        "refusal": None,
        "right": [item for piece in rights for item in piece],
    }


def test_without_pieces_there_is_nothing():
    assert JsonLists().whole() == {}
