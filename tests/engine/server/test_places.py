"""Who gets a place is decided at once, before any work is done for those who get none."""

import asyncio
import threading

import pytest

from engine.protocol.errors import InvalidRequest
from engine.server.errors import EngineBusy
from engine.server.places import Places
from tests.engine.server.conftest import client_for, completion, echo, until


def test_places_count_samples_and_waiting_tokens():
    places = Places(max_samples=4, max_tokens=100)
    first = places.take(3)
    first.prompt(60)
    with pytest.raises(EngineBusy):
        places.take(2)
    second = places.take(1)
    with pytest.raises(EngineBusy):
        second.prompt(41)
    second.release()
    assert (places.samples, places.tokens) == (3, 60)
    first.began()
    places.take(1).prompt(100)
    first.release()
    first.release()
    assert (places.samples, places.tokens) == (1, 100)


def test_what_can_never_have_places_is_told_so():
    with pytest.raises(InvalidRequest) as caught:
        Places(max_samples=4, max_tokens=100).take(5)
    assert caught.value.param == "n"


class CountingText:
    """Wraps a text model; counts prompts encoded and holds them until told to go on."""

    def __init__(self, text):
        self._text = text
        self.encoded = 0
        self.go = threading.Event()

    def __getattr__(self, name):
        return getattr(self._text, name)

    def encode(self, text):
        self.encoded += 1
        assert self.go.wait(30)
        return self._text.encode(text)


async def answers(client, count, prompt, **fields):
    async def one():
        async with await client.post("/v1/completions", completion(prompt, **fields)) as response:
            return response.status, response.headers, await response.json()

    return [asyncio.create_task(one()) for _ in range(count)]


@pytest.mark.parametrize("busy", [True, False], ids=["while_one_runs", "all_at_once"])
async def test_b4_a_burst_fills_queue_and_batch_exactly(launch, busy):
    """Cap 4 and one place in the batch: of 20 arrivals 5 are accepted, counting one that runs."""
    engine = launch(max_num_seqs=1, max_waiting_requests=4)
    service = engine.engine.service
    service.text = text = CountingText(service.text)
    async with client_for(engine) as client:
        engine.runner.hold()
        tasks = []
        if busy:
            text.go.set()
            tasks += await answers(client, 1, echo("hi"))
            await asyncio.to_thread(engine.runner.entered.wait, 20)
            text.go.clear()
        expected = 4 if busy else 5
        before = text.encoded
        burst = await answers(client, 20, echo("hi"))
        done, pending = set(), set(burst)
        while len(pending) > expected:
            finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            done |= finished
        for status, headers, body in (task.result() for task in done):
            assert (status, body["error"]["code"]) == (503, "queue_full")
            assert headers["retry-after"] == "1"
        await until(lambda: text.encoded == before + expected)
        text.go.set()
        engine.runner.let_go()
        accepted = await asyncio.gather(*tasks, *pending)
        assert [status for status, _, _ in accepted] == [200] * 5
        assert text.encoded == before + expected  # nothing was done for those refused
        await until(lambda: service._places.samples == 0)
        assert service._places.tokens == 0


async def test_b4_every_sample_takes_a_place(launch):
    engine = launch(max_num_seqs=2, max_waiting_requests=4)
    async with client_for(engine) as client:
        engine.runner.hold()
        (running,) = await answers(client, 1, echo("hi"), n=4)
        await asyncio.to_thread(engine.runner.entered.wait, 20)
        ((status, _, body),) = await asyncio.gather(*await answers(client, 1, "x", n=3))
        assert (status, body["error"]["code"]) == (503, "queue_full")
        (pair,) = await answers(client, 1, echo("hi"), n=2)
        engine.runner.let_go()
        assert [(await task)[0] for task in (running, pair)] == [200, 200]
        await until(lambda: engine.engine.service._places.samples == 0)


async def test_b4_waiting_prompt_tokens_are_capped_too(launch):
    engine = launch(max_num_seqs=1, max_waiting_tokens=512)
    async with client_for(engine) as client:
        engine.runner.hold()
        (running,) = await answers(client, 1, "x" * 300, max_tokens=2)
        await asyncio.to_thread(engine.runner.entered.wait, 20)
        engine.runner.permit()
        await until(lambda: engine.engine.service._places.tokens == 0)  # it waits no more
        (waiting,) = await answers(client, 1, "y" * 300, max_tokens=2)
        await until(lambda: engine.engine.service._places.tokens == 300)
        ((status, headers, _),) = await asyncio.gather(
            *await answers(client, 1, "z" * 300, max_tokens=2)
        )
        assert (await client.completion("z" * 600))[0] == 400  # it fits no queue at all
        assert (status, headers["retry-after"]) == (503, "1")
        (fits,) = await answers(client, 1, "z" * 200, max_tokens=2)
        await until(lambda: engine.engine.service._places.tokens == 500)
        engine.runner.let_go()
        assert [(await task)[0] for task in (running, waiting, fits)] == [200] * 3
        await until(lambda: engine.engine.service._places.samples == 0)


async def test_whatever_is_refused_or_breaks_off_gives_its_place_back(launch):
    engine = launch(max_num_seqs=1, max_waiting_requests=1)
    places = engine.engine.service._places
    async with client_for(engine) as client:
        for fields in (
            {"prompt": ""},
            {"prompt": "x" * 600},
            {"prompt": [99999]},
            {"logit_bias": {"99999": 1}},
        ):
            assert (await client.completion(**{"prompt": "x"} | fields))[0] == 400
            assert (places.samples, places.tokens) == (0, 0)
        engine.runner.failures = 1
        assert (await client.completion("x"))[0] == 500
        await until(lambda: places.samples == 0)
        engine.runner.hold()
        gone = asyncio.create_task(client.completion("endless"))
        await asyncio.to_thread(engine.runner.entered.wait, 20)
        gone.cancel()
        await until(lambda: engine.engine.service.loop._commands)
        assert places.samples == 1  # until the engine has let go of it
        engine.runner.let_go()
        await until(lambda: places.samples == 0)
        assert places.tokens == 0
