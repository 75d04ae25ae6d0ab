"""The stream between engine thread and handler loses nothing and holds little."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch import Logprobs
from engine.core.request import FinishReason
from engine.protocol.text.detokenizer import Detokenizer
from engine.protocol.text.stop import StopScanner
from engine.server.errors import RequestAborted, SlowReader
from engine.server.output import OutputText, Piece, TokenListing, echo_of
from engine.server.stream import Admitted, Delta, Failed, ListedToken, TokenStream


async def drain(stream):
    events = []
    while True:
        event = await stream.next()
        events.append(event)
        if isinstance(event, Failed) or (isinstance(event, Delta) and event.finish_reason):
            return events


@given(st.lists(st.text(max_size=3), min_size=1, max_size=30), st.data())
def test_however_reads_and_writes_interleave_text_and_usage_are_whole(pieces, data):
    async def scenario():
        stream = TokenStream("r")
        stream.push(Admitted(5))
        seen = []
        for index, piece in enumerate(pieces, start=1):
            last = index == len(pieces)
            stream.push(Delta(piece, index, FinishReason.LENGTH if last else None))
            if data.draw(st.booleans()) and stream._events:
                seen.append(await stream.next())
        while stream._events:
            seen.append(await stream.next())
        assert stream.ended
        return seen

    first, *deltas = asyncio.run(scenario())
    assert first == Admitted(5)
    assert "".join(delta.text for delta in deltas) == "".join(pieces)
    assert deltas[-1].output_tokens == len(pieces)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_unread_deltas_are_merged():
    stream = TokenStream("r")
    stream.push(Admitted(0))
    for count in range(1, 1001):
        stream.push(Delta("x", count))
    assert len(stream._events) == 2


async def test_text_beyond_the_bound_ends_the_stream_once():
    stream = TokenStream("r", max_unread_chars=10)
    assert stream.push(Delta("x" * 10, 10))
    assert not stream.push(Delta("y", 11))
    assert stream.ended
    assert stream.push(Delta("z", 12))  # nothing more comes, nothing more to abort
    (event,) = await drain(stream)
    assert isinstance(event.error, SlowReader)


async def test_nothing_follows_a_failure():
    stream = TokenStream("r")
    stream.push(Failed(RequestAborted()))
    stream.push(Delta("late", 1))
    assert len(await drain(stream)) == 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await stream.next()


async def test_deltas_of_each_choice_are_merged_apart():
    stream = TokenStream("r", num_choices=2)
    for count in range(1, 101):
        stream.push(Delta("x", count, choice=0))
        stream.push(Delta("y", count, choice=1))
    stream.push(Delta("", 101, FinishReason.STOP, choice=0))
    assert not stream.ended
    stream.push(Delta("", 101, FinishReason.LENGTH, choice=1))
    assert stream.ended
    first, second = await stream.next(), await stream.next()
    assert (first.choice, first.text, first.finish_reason) == (0, "x" * 100, "stop")
    assert (second.choice, second.text, second.finish_reason) == (1, "y" * 100, "length")


async def test_unread_text_of_all_choices_counts_together_and_what_is_read_does_not():
    stream = TokenStream("r", num_choices=2, max_unread_chars=10)
    for _ in range(50):
        assert stream.push(Delta("x" * 5, 1, choice=0))
        assert stream.push(Delta("y" * 5, 1, choice=1))
        assert len([await stream.next(), await stream.next()]) == 2
    stream.push(Delta("x" * 9, 1, choice=0))
    assert not stream.push(Delta("yy", 2, choice=1))
    (event,) = await drain(stream)
    assert isinstance(event.error, SlowReader)


async def test_log_probabilities_weigh_against_the_bound():
    stream = TokenStream("r", max_unread_chars=1000)
    scored = ListedToken(1, 0, Logprobs(1, -1.0, 1, tuple((i, -1.0) for i in range(20))))
    assert stream.push(Delta("", 1, tokens=(scored,)))
    assert not stream.push(Delta("", 2, tokens=(scored,)))


class Letters:
    """A detokeniser of one letter a token that keeps each back until the next comes."""

    partial = False
    num_earlier = 0

    def __init__(self):
        self.kept = ""

    def push(self, token_id):
        out, self.kept = self.kept, chr(token_id)
        return out

    def flush(self):
        out, self.kept = self.kept, ""
        return out


def said_by(output, text):
    """The text and the tokens that come out, and whether a stop string ended it."""
    said, tokens = "", []
    for char in text[:-1]:
        piece = output.push(ord(char))
        said, tokens = said + piece.text, [*tokens, *piece.tokens]
        if piece.stopped:
            return said, tokens, True
    piece = output.finish(ord(text[-1]))
    return said + piece.text, [*tokens, *piece.tokens], piece.stopped


@given(
    st.text("abc", min_size=1, max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4)),
    st.booleans(),
)
def test_output_is_the_text_before_the_first_stop_string(text, stops, include):
    output = OutputText(Letters(), StopScanner(tuple(stops), include=include))
    said, _, stopped = said_by(output, text)
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if ends:
        end, _, stop = min(ends)
        assert stopped
        assert said == text[: end if include else end - len(stop)]
    else:
        assert (said, stopped) == (text, False)


class Bytes:
    """A detokeniser of one byte a token."""

    num_earlier = 0

    def __init__(self):
        self.inner = Detokenizer([bytes([i]) for i in range(256)], ())

    def __getattr__(self, name):
        return getattr(self.inner, name)


def first_stop(text, stops, after):
    """Of the stop strings that end after `after` characters, where the first ends and begins."""
    found = [
        (end, -len(stop), end - len(stop))
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if end > after and text[end - len(stop) : end] == stop
    ]
    return min(found, default=None)


@given(
    st.text("aé€", min_size=1, max_size=20),
    st.lists(st.text("aé€", min_size=1, max_size=3), max_size=3),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 5),
)
def test_e2_lists_hold_just_the_tokens_whose_whole_text_was_sent(
    text, stops, min_tokens, include, start
):
    data = text.encode()
    output = OutputText(
        Bytes(),
        StopScanner(tuple(stops), include=include),
        min_tokens=min_tokens,
        listing=TokenListing(start),
    )
    said, tokens, stopped = said_by(output, [chr(byte) for byte in data])
    unarmed = len(data[:min_tokens].decode(errors="ignore"))
    stop = first_stop(text, stops, unarmed)
    expected = text if stop is None else text[: stop[0] if include else stop[2]]
    assert (said, stopped) == (expected, stop is not None)
    assert bytes(token.token_id for token in tokens) == expected.encode()
    begins = [len(data[:at].decode(errors="ignore")) + start for at in range(len(tokens))]
    assert [token.offset for token in tokens] == begins


def test_e2_a_token_that_straddles_the_cut_is_not_listed():
    pieces = [b"say ", b"it ST", b"OP", b" now", b"<end>"]
    for stop, include, text, listed in [
        ("STOP", False, "say it ", [0]),
        ("STOP", True, "say it STOP", [0, 1, 2]),
        ("OP n", True, "say it STOP n", [0, 1, 2]),
        ("y i", False, "sa", []),
        ("none", False, "say it STOP now", [0, 1, 2, 3, 4]),
    ]:
        output = OutputText(
            Detokenizer(pieces, ()),
            StopScanner((stop,), include=include),
            listing=TokenListing(),
        )
        said, tokens = "", []
        for token_id in range(5):
            last = token_id == 4
            piece = output.finish(4, by_token=True) if last else output.push(token_id)
            said, tokens = said + piece.text, [*tokens, *piece.tokens]
            if piece.stopped:
                break
        assert (said, [token.token_id for token in tokens]) == (text, listed)


def test_a_character_that_is_cut_off_comes_before_the_token_that_cuts_it_off():
    pieces = [b"a", "😀".encode()[:2], "😀".encode()[2:], b"bc"]
    output = OutputText(Detokenizer(pieces, (0, 1)), StopScanner(()), listing=TokenListing())
    told = [output.push(token_id) for token_id in (2, 1, 1, 3, 1)] + [output.finish(0)]
    assert "".join(piece.text for piece in told) == "😀\ufffd\ufffdbc\ufffda"
    assert [t.offset for piece in told for t in piece.tokens] == [0, 1, 2, 3, 5, 6]
    echo = echo_of(Detokenizer(pieces, ()), (0, 1, 3, 1))
    assert (echo.text, echo.offsets) == ("a\ufffdbc", (0, 1, 2, 4))


def test_e2_a_last_token_whose_unfinished_character_is_a_stop_string_is_not_listed():
    output = OutputText(
        Detokenizer([b"a", "😀".encode()[:2]], ()),
        StopScanner(("\ufffd",)),
        listing=TokenListing(),
    )
    assert [token.token_id for token in output.push(0).tokens] == [0]
    assert output.finish(1) == Piece("", True, ())


def test_a_stop_tokens_text_is_shown_on_demand_only():
    for shown, text in ((False, "ab"), (True, "ab<end>")):
        output = OutputText(
            Detokenizer([b"ab", b"<end>"], ()), StopScanner(()), show_stop_token=shown
        )
        assert output.push(0).text + output.finish(1, by_token=True).text == text
        output = OutputText(Detokenizer([b"ab", b"<end>"], ()), StopScanner(()))
        assert output.push(0).text + output.finish(1).text == "ab<end>"  # it was just the last


def test_an_echo_leaves_an_unfinished_character_to_the_answer():
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:]]
    echo = echo_of(Detokenizer(pieces, ()), (0, 0, 1))
    assert (echo.text, echo.offsets) == ("aa", (0, 1, 2))
    assert Detokenizer(pieces, (0, 0, 1)).push(2) == "é"
