from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_hash import BlockHasher, Tag, frame

DIGEST = bytes(range(32))
TOKENS = tuple(range(1, 17))


def independent_key(*fields: tuple[int, bytes]) -> bytes:
    message = b""
    for tag, data in fields:
        message += bytes([tag]) + len(data).to_bytes(4, "big") + data
    return sha256(message).digest()


def token_bytes(token_ids) -> bytes:
    return b"".join(token.to_bytes(4, "big") for token in token_ids)


def test_keys_follow_the_written_encoding():
    hasher = BlockHasher(DIGEST, 16)
    head = ((1, b"evenhand/block/v1"), (2, DIGEST))
    first = independent_key(*head, (3, b"namespace"), (5, token_bytes(TOKENS)))
    assert hasher.first("namespace", TOKENS) == first
    second = independent_key(*head, (4, first), (5, token_bytes(TOKENS)))
    assert hasher.following(first, TOKENS) == second


def test_a_key_never_changes():
    key = BlockHasher(DIGEST, 4).first("tenant", (1, 2, 3, 2**32 - 1))
    assert key.hex() == "e8852b52f2f694969c9ff5657cc658f433d4914faf6fe124ed7a332d9678417e"


@pytest.mark.parametrize(
    ("digest", "namespace", "token_ids"),
    [
        (DIGEST, "a", TOKENS[::-1]),
        (DIGEST, "b", TOKENS),
        (DIGEST, "", TOKENS),
        (DIGEST[::-1], "a", TOKENS),
        (b"", "a", TOKENS),
    ],
)
def test_every_input_is_part_of_the_key(digest, namespace, token_ids):
    key = BlockHasher(DIGEST, 16).first("a", TOKENS)
    assert BlockHasher(digest, 16).first(namespace, token_ids) != key


def test_a_namespace_equal_to_a_parent_key_is_not_that_parent():
    text = "k" * 32
    hasher = BlockHasher(DIGEST, 16)
    assert hasher.first(text, TOKENS) != hasher.following(text.encode(), TOKENS)


@given(
    st.lists(st.tuples(st.sampled_from(Tag), st.binary(max_size=6)), max_size=3),
    st.lists(st.tuples(st.sampled_from(Tag), st.binary(max_size=6)), max_size=3),
)
def test_different_fields_never_encode_alike(left, right):
    def encode(fields):
        return b"".join(frame(tag, data) for tag, data in fields)

    assert (encode(left) == encode(right)) == (left == right)
