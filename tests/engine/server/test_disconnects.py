"""A client that leaves, or stops reading, gives its blocks back by the next step."""

import asyncio
import json
import re
import socket

import pytest

from tests.engine.server.conftest import client_for, completion, echo, until


def is_idle(engine):
    stats = engine.engine.service.loop.snapshot.stats
    return (stats.running, stats.waiting, stats.held_blocks) == (0, 0, 0)


def steps_with(engine, request_id):
    return sum(request_id in batch for batch in engine.runner.batches)


def leave(client, payload):
    return asyncio.create_task(client.post("/v1/completions", payload))


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_queued(launch, stream):
    engine = launch(max_num_seqs=1)
    async with client_for(engine) as client:
        engine.runner.hold()
        first = asyncio.create_task(client.completion(echo("first")))
        await asyncio.to_thread(engine.runner.entered.wait, 20)
        queued = leave(client, completion("queued", stream=stream, request_id="queued"))
        await until(lambda: engine.engine.service.loop._commands)
        engine.runner.permit()
        await until(lambda: engine.engine.service.loop.snapshot.stats.waiting == 1)
        queued.cancel()
        await until(lambda: engine.engine.service.loop._commands)
        engine.runner.permit()
        await until(lambda: engine.engine.service.loop.snapshot.stats.waiting == 0)
        engine.runner.let_go()
        assert (await first)[0] == 200
        assert is_idle(engine)
    assert steps_with(engine, "queued") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_byte(engine, client, stream):
    engine.runner.hold()
    gone = leave(client, completion("prefill", stream=stream, request_id="gone"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    gone.cancel()
    await until(lambda: engine.engine.service.loop._commands)
    engine.runner.let_go()
    await until(lambda: is_idle(engine))
    assert steps_with(engine, "gone") == 1
    capacity = await client.get("/capacity")
    assert capacity["kv_tokens"]["held"] == 0
    assert await client.metric("evenhand_engine_generation_tokens_total") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_e3_leaving_mid_answer(engine, client, stream):
    engine.runner.hold()
    gone = leave(client, completion("endless", stream=stream, request_id="gone"))
    engine.runner.permit(3)
    await until(lambda: len(engine.runner.batches) == 4)  # the fourth step waits
    if stream:
        (await gone).close()
    else:
        gone.cancel()
    await until(lambda: engine.engine.service.loop._commands)
    engine.runner.let_go()
    await until(lambda: is_idle(engine))
    assert steps_with(engine, "gone") == 4
    assert await client.metric("evenhand_engine_generation_tokens_total") == 3
    assert (await client.completion(echo("next")))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_token_never_reaches_a_later_request_of_the_same_id(engine, client, stream):
    engine.runner.hold()
    gone = leave(client, completion(echo("old"), stream=stream, request_id="twice"))
    await asyncio.to_thread(engine.runner.entered.wait, 20)
    commands = engine.engine.service.loop._commands
    gone.cancel()
    await until(lambda: len(commands) == 1)
    again = asyncio.create_task(client.completion(echo("new"), request_id="twice"))
    await until(lambda: len(commands) == 2)  # both wait for the step that samples "o"
    engine.runner.let_go()
    status, body = await again
    assert (status, body["choices"][0]["text"]) == (200, "new")
    assert body["usage"]["completion_tokens"] == len("new") + 1
    assert await client.metric("evenhand_engine_generation_tokens_total") == len("new") + 1


async def test_an_abandoned_prompt_stays_cached(engine, client):
    engine.runner.hold()
    gone = leave(client, completion("p" * 100))
    engine.runner.permit(2)
    await until(lambda: len(engine.runner.batches) == 3)
    gone.cancel()
    await until(lambda: engine.engine.service.loop._commands)
    engine.runner.let_go()
    await until(lambda: is_idle(engine))
    _, body = await client.completion("p" * 100, max_tokens=1)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 96


async def test_a_reader_that_stops_is_cut_off(launch):
    engine = launch(
        num_blocks=4096, max_model_len=65536, assembly={"write_deadline_s": 0.2}, max_num_seqs=2
    )
    engine.runner.inner._next_token = lambda tokens: tokens[0]
    engine.runner.inner._read = lambda row: []  # long histories are not what this test is about
    slow = "slow" * 32  # repeated in every event: the buffers in between fill sooner
    body = json.dumps(completion("a", stream=True, max_tokens=60_000, request_id=slow)).encode()
    with socket.socket(socket.AF_UNIX) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(str(engine.path))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {len(body)}\r\n\r\n"
        reader.sendall(head.encode() + body)
        await until(lambda: steps_with(engine, slow) > 0)
        await until(lambda: is_idle(engine), timeout_s=60)
    assert steps_with(engine, slow) < 60_000


async def test_a_long_answer_is_not_kept_for_one_who_does_not_read_it(launch):
    engine = launch(assembly={"write_deadline_s": 0.1})
    wanted = completion("p" * 200, n=8, max_tokens=1, prompt_logprobs=20)  # in each of 8 choices
    body = json.dumps(wanted).encode()
    with socket.socket(socket.AF_UNIX) as reader:
        reader.connect(str(engine.path))
        head = f"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {len(body)}\r\n"
        reader.sendall(head.encode() + b"connection: close\r\n\r\n" + body)
        await until(lambda: engine.runner.batches and is_idle(engine))
        await until(lambda: not engine.server.server_state.tasks)
        received = await asyncio.to_thread(read_all, reader)
    head, _, answered = received.partition(b"\r\n\r\n")
    (length,) = re.findall(rb"content-length: (\d+)", head)
    assert 0 < len(answered) < int(length)


def read_all(reader):
    return b"".join(iter(lambda: reader.recv(1 << 16), b""))
