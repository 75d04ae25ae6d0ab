"""Slow and silent clients are cut off, and nobody else notices."""

import asyncio
import json

import pytest

LIMITS = {"header_timeout_s": 0.3, "body_timeout_s": 0.3, "write_timeout_s": 0.3}


@pytest.fixture
async def strict(make_gateway):
    async with make_gateway(gateway=LIMITS) as gateway:
        yield gateway


async def connect(gateway):
    host, _, port = gateway.url.removeprefix("http://").removesuffix("/v1").partition(":")
    return await asyncio.open_connection(host, int(port), limit=64)


async def read_all(reader):
    return await asyncio.wait_for(reader.read(), 5)


async def test_a_silent_connection_is_closed(strict):
    reader, writer = await connect(strict)
    assert await read_all(reader) == b""
    writer.close()


@pytest.mark.parametrize(
    "start",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\n",
        b"GET /v1/mod",
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
            b"authorization: Bearer %b\r\n\r\n{"
        ),
    ],
    ids=["headers", "request line", "body"],
)
async def test_a_slow_request_is_told_and_closed(strict, start):
    reader, writer = await connect(strict)
    writer.write(start.replace(b"%b", strict.key.encode()))
    received = await read_all(reader)
    assert received.startswith(b"HTTP/1.1 408"), received
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    writer.close()
    assert strict.rows() == []


async def test_a_large_request_in_one_piece_is_not_taken_for_a_header(strict):
    body = json.dumps({"model": "smollm2-135m", "prompt": "a " * 30_000}).encode()
    async with strict.client().post("/v1/completions", data=body) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "context_length_exceeded"


async def test_many_requests_on_one_connection(strict):
    request = (
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n\r\n"
        % strict.key.encode()
    )
    reader, writer = await connect(strict)
    writer.write(request * 20 + request.replace(b"host: x", b"host: x\r\nconnection: close"))
    received = await read_all(reader)
    assert received.count(b"HTTP/1.1 200 OK") == 21
    writer.close()


async def test_a_reader_that_stops_loses_its_place(strict):
    strict.upstream.script.tokens = 400
    strict.upstream.script.between_s = 0.0005
    strict.upstream.words = "x" * 20_000
    body = json.dumps(
        {"model": "smollm2-135m", "prompt": [5], "max_tokens": 400, "stream": True}
    ).encode()
    _, writer = await connect(strict)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(body)
        + b"authorization: Bearer %b\r\n\r\n" % strict.key.encode()
        + body
    )
    await strict.eventually(lambda: strict.upstream.running)
    writer.transport.pause_reading()
    rows = await strict.usage()
    assert [row["outcome"] for row in rows] == ["cancelled"]
    assert not strict.upstream.running
    writer.close()


CHUNKED_POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"


async def test_a_trailer_is_no_credential(strict):
    body = json.dumps({"model": "smollm2-135m", "prompt": [5], "max_tokens": 1}).encode()
    reader, writer = await connect(strict)
    writer.write(
        CHUNKED_POST
        + b"connection: close\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
        + b"authorization: Bearer %b\r\n\r\n" % strict.key.encode()
    )
    assert (await read_all(reader)).startswith(b"HTTP/1.1 401")
    writer.close()
    assert strict.rows() == []


SMUGGLED = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"content-length: %d" % len(SMUGGLED), SMUGGLED),
        (b"transfer-encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)),
    ],
    ids=["length", "chunked"],
)
async def test_the_body_of_an_upgrade_is_never_the_next_request(strict, framing, body):
    reader, writer = await connect(strict)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
        + framing
        + b"\r\n\r\n"
    )
    refusal = await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)
    writer.write(body)
    assert refusal.startswith(b"HTTP/1.1 400")
    assert b"HTTP/1.1" not in await read_all(reader)
    writer.close()


async def test_an_upgrade_without_a_body_is_ignored(strict):
    reader, writer = await connect(strict)
    writer.write(
        b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
        b"content-length: 0\r\n\r\n"
    )
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 5)).startswith(b"HTTP/1.1 200")
    writer.write(SMUGGLED)
    assert b"HTTP/1.1 200" in await read_all(reader)
    writer.close()
