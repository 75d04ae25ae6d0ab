"""Writes of one turn of the loop leave together, in order, and none is lost when it closes."""

import asyncio

import pytest

from gateway.gathered import GatheredWrites


class Wire:
    """A transport that notes what is done to it."""

    def __init__(self):
        self.done = []

    def write(self, data):
        self.done.append(data)

    def close(self):
        self.done.append("closed")

    def abort(self):
        self.done.append("aborted")


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
async def gathered(wire):
    return GatheredWrites(wire, asyncio.get_running_loop())


async def test_one_turn_is_one_write(wire, gathered):
    gathered.write(b"head ")
    gathered.write(bytearray(b"body"))
    assert wire.done == []
    await asyncio.sleep(0)
    gathered.write(b"next")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.done == [b"head body", b"next"]


async def test_what_is_written_leaves_before_it_closes(wire, gathered):
    gathered.write(b"last")
    gathered.close()
    assert wire.done == [b"last", "closed"]
    await asyncio.sleep(0)
    assert wire.done == [b"last", "closed"]


async def test_an_abort_drops_what_waits(wire, gathered):
    gathered.write(b"lost")
    gathered.abort()
    await asyncio.sleep(0)
    assert wire.done == ["aborted"]


async def test_a_response_leaves_in_one_piece(gateway):
    host, _, port = gateway.url.removeprefix("http://").removesuffix("/v1").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    received = await reader.read(65_536)
    assert received.endswith(b'\r\n\r\n{"status":"ok"}')
    writer.close()
