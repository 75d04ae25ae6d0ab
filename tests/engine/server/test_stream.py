"""The stream between engine thread and handler loses nothing and holds little."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.request import FinishReason
from engine.protocol.text.stop import StopScanner
from engine.server.errors import RequestAborted, SlowReader
from engine.server.output import OutputText
from engine.server.stream import Admitted, Delta, Failed, TokenStream


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


class Letters:
    """A detokeniser of one letter a token that keeps each back until the next comes."""

    def __init__(self):
        self.kept = ""

    def push(self, token_id):
        out, self.kept = self.kept, chr(token_id)
        return out

    def flush(self):
        out, self.kept = self.kept, ""
        return out


@given(st.text("abc", min_size=1, max_size=30), st.lists(st.text("abc", min_size=1, max_size=4)))
def test_output_is_the_text_before_the_first_stop_string(text, stops):
    output = OutputText(Letters(), StopScanner(tuple(stops)))
    said, stopped = "", False
    for char in text[:-1]:
        piece, stopped = output.push(ord(char))
        said += piece
        if stopped:
            break
    if not stopped:
        piece, stopped = output.finish(ord(text[-1]))
        said += piece
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if ends:
        end, _, stop = min(ends)
        assert stopped
        assert said == text[: end - len(stop)]
    else:
        assert (said, stopped) == (text, False)
