from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_hash import BlockHasher, Tag, frame, group_key

DIGEST = bytes(range(32))
TOKENS = tuple(range(1, 17))


def independent_key(*fields: tuple[int, bytes]) -> bytes:
    message = b""
    for tag, data in fields:
        message += bytes([tag]) + len(data).to_bytes(4, "big") + data
    return sha256(message).digest()


def token_bytes(token_ids) -> bytes:
    return b"".join(token.to_bytes(4, "big") for token in token_ids)


def first(namespace: str = "a", token_ids=TOKENS, digest: bytes = DIGEST) -> bytes:
    (key,) = BlockHasher(digest, len(token_ids)).keys(namespace, None, token_ids)
    return key


def test_keys_follow_the_written_encoding():
    head = ((1, b"evenhand/block/v1"), (2, DIGEST))
    one = independent_key(*head, (3, b"namespace"), (5, token_bytes(TOKENS)))
    two = independent_key(*head, (4, one), (5, token_bytes(TOKENS[::-1])))
    hasher = BlockHasher(DIGEST, 16)
    assert hasher.keys("namespace", None, (*TOKENS, *TOKENS[::-1])) == [one, two]


def test_a_key_never_changes():
    assert first("tenant", (1, 2, 3, 2**32 - 1)).hex() == (
        "e8852b52f2f694969c9ff5657cc658f433d4914faf6fe124ed7a332d9678417e"
    )


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
    assert first(namespace, token_ids, digest) != first()


def test_a_namespace_equal_to_a_parent_key_is_not_that_parent():
    text = "k" * 32
    assert [first(text)] != BlockHasher(DIGEST, 16).keys("", text.encode(), TOKENS)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.integers(0, 9), st.integers(1, 5))
def test_keys_can_be_continued_from_any_block_and_ignore_an_unfull_one(token_ids, cut, block_size):
    hasher = BlockHasher(DIGEST, block_size)
    keys = hasher.keys("a", None, token_ids)
    assert len(keys) == len(token_ids) // block_size
    done = min(cut, len(keys))
    parent = keys[done - 1] if done else None
    assert hasher.keys("a", parent, token_ids[done * block_size :]) == keys[done:]


def test_page_groups_have_keys_of_their_own():
    keys = {group_key(key, group) for key in (first("a"), first("b")) for group in range(300)}
    assert len(keys) == 600
    assert group_key(first(), 0) == first()


@given(
    st.lists(st.tuples(st.sampled_from(Tag), st.binary(max_size=6)), max_size=3),
    st.lists(st.tuples(st.sampled_from(Tag), st.binary(max_size=6)), max_size=3),
)
def test_different_fields_never_encode_alike(left, right):
    def encode(fields):
        return b"".join(frame(tag, data) for tag, data in fields)

    assert (encode(left) == encode(right)) == (left == right)
