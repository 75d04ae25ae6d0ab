"""Events survive any cut of the stream; an endless one is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import sse

LINES = st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


def naive(stream: bytes) -> list[bytes]:
    """The HTML standard's algorithm over the whole stream at once."""
    payloads, data = [], []
    for line in stream.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        if not line:
            if data:
                payloads.append(b"\n".join(data))
            data = []
        elif line == b"data":
            data.append(b"")
        elif line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
    return payloads


@given(st.lists(LINES, max_size=8), st.lists(st.integers(min_value=0), max_size=12))
def test_what_was_encoded_is_read_back_however_it_is_cut(payloads, cuts):
    stream = b"".join(map(sse.encode, payloads)) + sse.DONE
    parser = sse.Parser()
    assert [p for piece in cut(stream, cuts) for p in parser.feed(piece)] == [
        *payloads,
        sse.DONE_PAYLOAD,
    ]


@given(
    st.lists(
        st.sampled_from([b"data", b":", b" ", b"x", b"\n", b"\r", b"\r\n", b"event: e", b"data: y"])
    ),
    st.lists(st.integers(min_value=0), max_size=12),
)
def test_any_stream_reads_as_the_standard_says(pieces, cuts):
    stream = b"".join(pieces)
    parser = sse.Parser()
    got = [payload for piece in cut(stream, cuts) for payload in parser.feed(piece)]
    if stream.endswith(b"\r"):  # whether a line feed follows is not known, nor does it matter
        stream += b"\n"
    assert got == naive(stream)


def test_a_payload_of_several_lines_is_a_mistake():
    for payload in (b"a\nb", b"a\rb"):
        with pytest.raises(ValueError, match="single line"):
            sse.encode(payload)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 10, b"data: x\n"])
def test_an_event_without_an_end_is_refused(piece):
    parser = sse.Parser(max_event_bytes=1_000)
    pieces = itertools.repeat(piece, 1_000)
    with pytest.raises(sse.SseOverflowError):
        list(map(parser.feed, pieces))


def test_many_events_never_add_up_to_an_overflow():
    parser = sse.Parser(max_event_bytes=100)
    for _ in range(1_000):
        assert parser.feed(b"data: " + b"x" * 40) == []
        assert parser.feed(b"\n\n: comment\n\n") == [b"x" * 40]
