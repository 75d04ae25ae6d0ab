from hypothesis import example, given
from hypothesis import strategies as st

from engine.protocol.text.detokenizer import Detokenizer

# Token 0 is a control token; every byte is a token, and so are some halves of characters.
HALVES = [b"", "é".encode(), "😀".encode()[:2], "😀".encode()[2:], b"\xe4\xb8", b"\xade", b"ab"]
TABLE = tuple(HALVES) + tuple(bytes([byte]) for byte in range(256))
IDS = st.lists(st.integers(0, len(TABLE) - 1), max_size=30)


def decode(ids, prompt=()):
    detokenizer = Detokenizer(TABLE, prompt)
    return [detokenizer.push(token_id) for token_id in ids], detokenizer.flush()


@given(IDS)
def test_pieces_are_the_whole(ids):
    pieces, rest = decode(ids)
    whole = b"".join(TABLE[token_id] for token_id in ids)
    assert "".join(pieces) + rest == whole.decode("utf-8", "replace")


@given(st.text(max_size=20), st.randoms(use_true_random=False))
def test_valid_text_never_shows_a_replacement(text, random):
    data = text.encode()
    pieces = []
    while data:
        length = random.randint(1, 3)
        pieces.append(data[:length])
        data = data[length:]
    detokenizer = Detokenizer(pieces, ())
    out = [detokenizer.push(i) for i in range(len(pieces))]
    assert "".join(out) == text
    assert detokenizer.flush() == ""


def test_character_in_four_tokens_comes_out_once():
    ids = [len(HALVES) + byte for byte in "😀".encode()]
    assert decode(ids) == (["", "", "", "😀"], "")


def test_cut_off_character_shows_at_the_end_only():
    assert decode([2]) == ([""], "\ufffd")


def test_control_and_padding_tokens_have_no_text():
    assert decode([6, 0, len(TABLE) + 5, 6]) == (["ab", "", "", "ab"], "")


def test_prompt_does_not_leak():
    assert decode([6], prompt=[6, 6]) == (["ab"], "")


def test_output_completes_a_character_of_the_prompt():
    assert decode([3, 6], prompt=[6, 2]) == (["😀", "ab"], "")


def test_unfinished_character_of_the_prompt_is_not_output():
    assert decode([6], prompt=[6, 2]) == (["ab"], "")
    assert decode([], prompt=[6, 2]) == ([], "")
    assert decode([0], prompt=[6, 2]) == ([""], "")


def test_it_says_whether_a_character_is_unfinished():
    detokenizer = Detokenizer(TABLE, [6, 2])
    assert detokenizer.partial
    detokenizer.push(3)
    assert not detokenizer.partial
    detokenizer.push(2)
    assert detokenizer.partial
    detokenizer.flush()
    assert not Detokenizer(TABLE, [6]).partial


@given(IDS, IDS)
@example([], [244, 167])  # the first two bytes of what would be a surrogate
def test_it_says_where_in_the_text_each_token_begins(prompt, ids):
    detokenizer = Detokenizer(TABLE, prompt)
    tail = open_character(b"".join(TABLE[i] for i in prompt)) if detokenizer.partial else b""
    so_far, length = b"", 0
    for token_id in ids:
        text, data = detokenizer.push(token_id), TABLE[token_id]
        if data:
            if not so_far and data[0] & 0xC0 == 0x80:
                so_far = tail  # it goes on with the prompt's
            so_far += data
            through_first_byte = so_far[: len(so_far) - len(data) + 1].decode("utf-8", "replace")
            assert length + detokenizer.num_earlier == len(through_first_byte) - 1
        length += len(text)


def open_character(data):
    """The last bytes, which are one character that is not whole."""
    tails = (data[-n:] for n in (1, 2, 3))
    return next(t for t in tails if len(t.decode("utf-8", "replace")) == 1 and t[0] & 0xC0 != 0x80)
