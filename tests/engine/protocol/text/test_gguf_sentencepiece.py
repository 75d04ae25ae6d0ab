"""SentencePiece vocabularies of GGUF files, against the algorithm written out plainly."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.gguf_vocabulary import build
from engine.protocol.text.metadata import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FIRST_PIECE = 3 + len(BYTES)


def metadata_of(tmp_path, pieces, defined=(), scores=None, **changes):
    """`pieces` best first; then user-defined tokens."""
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces, *defined]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    kinds += [NORMAL] * len(pieces) + [USER_DEFINED] * len(defined)
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores or [-float(i) for i in range(len(tokens))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }
    return Metadata(tmp_path / "model.gguf", values)


class AmbiguousError(Exception):
    """Two overlapping merges make the same piece: an order that merges by rank cannot express."""


def plainly(pieces, text):
    """Merge the best-scored neighbours, the leftmost of equals, until none is a piece."""
    rank = {piece: index for index, piece in enumerate(pieces)}
    symbols = list(text.replace(" ", SPACE))
    while True:
        merged = ["".join(pair) for pair in pairwise(symbols)]
        best = min((rank[piece] for piece in merged if piece in rank), default=None)
        if best is None:
            break
        places = [at for at, piece in enumerate(merged) if rank.get(piece) == best]
        if any(
            after == at + 1 and len(symbols[at]) != len(symbols[at + 1])
            for at, after in pairwise(places)
        ):
            raise AmbiguousError
        at = places[0]
        symbols[at : at + 2] = [merged[at]]
    ids = []
    for symbol in symbols:
        if symbol in rank:
            ids.append(FIRST_PIECE + rank[symbol])
        else:
            ids += [3 + byte for byte in symbol.encode()]
    return ids


ALPHABET = "ab" + SPACE
# With every character of a piece, as training makes them.
vocabularies = st.lists(st.text(ALPHABET, min_size=1, max_size=5), max_size=25).map(
    lambda pieces: list(dict.fromkeys([*pieces, *ALPHABET]))
)


@given(vocabularies, st.text("ab é🙂", max_size=30), st.booleans())
def test_as_the_algorithm_says(tmp_path_factory, pieces, text, prefixed):
    metadata = metadata_of(tmp_path_factory.getbasetemp(), pieces, add_space_prefix=prefixed)
    tokenizer = build(metadata)
    try:
        expected = plainly(pieces, f" {text}" if prefixed and text else text)
        middle = plainly(pieces, text)
    except AmbiguousError:
        assume(False)
    assert tokenizer.encode(text) == [1, *expected]
    assert tokenizer.encode_inner(text) == middle
    spelled = b"".join(tokenizer.token_bytes[i] for i in expected).decode()
    assert spelled == (f" {text}" if prefixed and text else text)


def test_scores_decide_not_the_order_of_tokens(tmp_path):
    pieces = ["a", "b", "ab", "ba"]
    late = [0.0] * FIRST_PIECE + [-9.0, -9.0, -2.0, -1.0]
    tokenizer = build(metadata_of(tmp_path, pieces, scores=late, add_space_prefix=False))
    assert tokenizer.encode_inner("aba") == [FIRST_PIECE, FIRST_PIECE + 3]
    early = [0.0] * FIRST_PIECE + [-9.0, -9.0, -1.0, -2.0]
    tokenizer = build(metadata_of(tmp_path, pieces, scores=early, add_space_prefix=False))
    assert tokenizer.encode_inner("aba") == [FIRST_PIECE + 2, FIRST_PIECE]


def test_control_and_byte_tokens_spelled_in_text_are_ordinary_text(tmp_path):
    tokenizer = build(metadata_of(tmp_path, list("<s>/0x41"), add_space_prefix=False))
    for text in ("<s>", "</s>", "<unk>", "<0x41>"):
        ids = tokenizer.encode_inner(text)
        assert len(ids) >= len(text)
        assert not {0, 1, 2, 3 + 0x41} & set(ids)
    assert tokenizer.encode_rendered("<s>s</s>", "")[::2] == [1, 2]


def test_user_defined_tokens_are_whole_in_either_spelling_of_a_space(tmp_path):
    """Converters write such a token with a space, vocabularies with the sign for it."""
    for spelling in ("  ", SPACE * 2):
        metadata = metadata_of(tmp_path, ["a", SPACE], [spelling], add_space_prefix=False)
        tokenizer = build(metadata)
        double = FIRST_PIECE + 2
        assert tokenizer.encode_inner("a  a") == [FIRST_PIECE, double, FIRST_PIECE]
        assert tokenizer.token_bytes[double] == b"  "


def test_text_after_a_control_token_begins_as_a_prompt_does(tmp_path):
    """As llama.cpp does it, and as models of this kind were trained."""
    tokenizer = build(metadata_of(tmp_path, ["a", SPACE, SPACE + "a"]))
    spaced = FIRST_PIECE + 2
    assert tokenizer.encode("a") == [1, spaced]
    assert tokenizer.encode_rendered("<s>a</s>a", "") == [1, spaced, 2, spaced]
    assert tokenizer.encode_inner("a") == [FIRST_PIECE]


def test_without_tokens_of_bytes_the_unknown_token_stands_in(tmp_path):
    changes = {
        "tokens": ["<unk>", "<s>", "</s>", "a"],
        "token_type": [UNKNOWN, CONTROL, CONTROL, NORMAL],
        "scores": [0.0] * 4,
        "add_space_prefix": False,
    }
    tokenizer = build(metadata_of(tmp_path, [], **changes))
    assert tokenizer.encode_inner("aéa") == [3, 0, 3]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scores": [0.0]}, "scores has 1 entries for 260 tokens"),
        ({"scores": [1] * 260}, "scores is not a list of numbers"),
        ({"scores": [float("nan")] * 260}, "holds what is not a number"),
        ({"add_space_prefix": "no"}, "add_space_prefix is not true or false"),
        ({"tokens": ["a" * (1 << 15)] * 260}, "tokens are too long"),
        (
            {
                "tokens": ["a", "b", "c"],
                "token_type": [1, 1, 1],
                "scores": [0.0] * 3,
                "unknown_token_id": 7,
            },
            "there are 3 tokens",
        ),
    ],
)
def test_vocabularies_that_do_not_add_up_are_refused(tmp_path, changes, reason):
    with pytest.raises(ModelFileError, match=reason):
        build(metadata_of(tmp_path, ["a"], **changes))
