"""An engine without a model on a real unix socket, a client, and a runner that tests steer."""

import asyncio
import contextlib
import json
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.core.engine_core import CoreConfig
from engine.protocol import sse
from engine.protocol.text.model import load_text_model
from engine.runner.fake import FakeRunner, greedy
from engine.server.assembly import assemble
from engine.server.listen import UnixAddress, bound
from engine.server.serving import EngineServer

SALT = "A" * 43
OTHER_SALT = "B" * 43
END_OF_PROMPT = "\x1e"
MODEL = "echo"


@pytest.fixture(scope="session")
def text_model(tmp_path_factory):
    """A byte-level tokenizer: a token per byte, and control tokens for a chat template."""
    folder = tmp_path_factory.mktemp("models") / MODEL
    folder.mkdir()
    write_model(folder)
    return load_text_model(folder)


def write_model(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (
        "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}" + END_OF_PROMPT
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": template})
    )
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 2048}))


class Echo:
    """Answers with the prompt's own bytes up to END_OF_PROMPT, then ends; without one, 'a' forever.

    A control token at the start of the prompt is not repeated.
    """

    def __init__(self, text_model):
        self.separator = text_model.encode(END_OF_PROMPT)[0]
        self.endless = text_model.encode("a")[0]
        self.vocab = text_model.vocab_size
        self.ends = text_model.eos_token_ids

    def __call__(self, tokens):
        if self.separator not in tokens:
            return self.endless
        at = tokens.index(self.separator)
        echoed = [token for token in tokens[:at] if token < 256]
        said = len(tokens) - at - 1
        return echoed[said] if said < len(echoed) else min(self.ends)


class SteeredRunner:
    """A fake runner whose steps wait for permission while `hold` is on, and fail on demand.

    `poisoned` rows make a whole batch fail, `unsampled` ones their own sampling.
    """

    def __init__(self, inner):
        self.inner = inner
        self.permits = threading.Semaphore(0)
        self.held = False
        self.failures = 0
        self.poisoned = set()
        self.unsampled = set()
        self.batches = []
        self.entered = threading.Event()

    def execute(self, batch):
        self.batches.append([row.request_id for row in batch.rows])
        self.entered.set()
        if self.held:
            assert self.permits.acquire(timeout=30)
        if self.failures:
            self.failures -= 1
            raise ValueError("canary 0xdeadbeef /etc/passwd")
        ids = {row.request_id for row in batch.rows}
        if ids & self.poisoned:
            raise ValueError("canary")
        output = self.inner.execute(batch)
        failed = {each: ValueError("canary") for each in ids & self.unsampled}
        sampled = {each: t for each, t in output.sampled.items() if each not in failed}
        return replace(output, sampled=sampled, failed=failed)

    def hold(self):
        self.entered.clear()
        self.held = True

    def permit(self, steps=1):
        self.permits.release(steps)

    def let_go(self):
        self.held = False
        self.permits.release(1000)


class RunningEngine:
    """The server in a thread and what tests look at."""

    def __init__(self, engine, runner, config, path, drain_deadline_s):
        self.engine = engine
        self.runner = runner
        self.config = config
        self.path = path
        self._ready = threading.Event()
        self.server = EngineServer(engine.app, engine.service, drain_deadline_s, self._ready.set)
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        with bound(UnixAddress(self.path)) as listener:
            self.server.run(sockets=[listener])

    @property
    def core(self):
        return self.engine.service.loop._core

    def start(self):
        self._thread.start()
        assert self._ready.wait(20)

    def stop(self):
        self.runner.let_go()
        self.server.request_stop()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.engine.telemetry.shutdown()


@pytest.fixture
def launch(text_model):
    """Start an engine; keywords are CoreConfig's, and `assemble`'s after `assembly`.

    `choose` makes the fake runner's tokens from its most likely ones.
    """
    running = []
    folder = tempfile.TemporaryDirectory(prefix="eh")

    def start(*, drain_deadline_s=5.0, assembly=None, choose=greedy, **sizes):
        sizes = {"num_blocks": 64, "max_model_len": 512, "model_digest": b"echo"} | sizes
        config = CoreConfig(**sizes)
        runner = SteeredRunner(
            FakeRunner(
                config.num_blocks,
                config.block_size,
                vocab_size=text_model.vocab_size,
                next_token=Echo(text_model),
                choose=choose,
            )
        )
        engine = assemble(runner, text_model, config, **(assembly or {}))
        path = Path(folder.name) / f"{len(running)}.sock"
        up = RunningEngine(engine, runner, config, path, drain_deadline_s)
        running.append(up)
        up.start()
        return up

    yield start
    for up in running:
        up.stop()
        up.core.check_integrity()
    folder.cleanup()


@pytest.fixture
def engine(launch):
    return launch()


class Client:
    """The engine's API over its socket."""

    def __init__(self, session):
        self.session = session

    async def post(self, path, payload, **options):
        return await self.session.post(f"http://engine{path}", json=payload, **options)

    async def get(self, path):
        async with self.session.get(f"http://engine{path}") as response:
            assert response.status == 200, await response.text()
            if response.content_type == "application/json":
                return await response.json()
            return await response.text()

    async def completion(self, prompt, **fields):
        async with await self.post("/v1/completions", completion(prompt, **fields)) as response:
            return response.status, await response.json()

    async def events(self, path, payload):
        """Every payload of a stream, parsed; `[DONE]` as the string."""
        async with await self.post(path, payload) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            return parse_events(await response.read())

    async def metric(self, name):
        """The one sample of this name (labels included) on the metrics page."""
        for line in (await self.get("/metrics")).splitlines():
            if line.rsplit(" ", 1)[0] == name:
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no sample {name}")


@contextlib.asynccontextmanager
async def client_for(running):
    connector = aiohttp.UnixConnector(str(running.path), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session)


@pytest.fixture
async def client(engine):
    async with client_for(engine) as connected:
        yield connected


def parse_events(body):
    payloads = sse.Parser().feed(body)
    return ["[DONE]" if p == sse.DONE_PAYLOAD else json.loads(p) for p in payloads]


def completion(prompt, **fields):
    return {"model": MODEL, "prompt": prompt, "cache_salt": SALT, "temperature": 0} | fields


def chat(*contents, **fields):
    messages = [{"role": "user", "content": content} for content in contents]
    return {"model": MODEL, "messages": messages, "cache_salt": SALT, "temperature": 0} | fields


def echo(text):
    """A prompt that is answered with `text`."""
    return text + END_OF_PROMPT


async def until(condition, timeout_s=20):
    """Wait for a condition, sync or async, that another thread makes true."""
    async with asyncio.timeout(timeout_s):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.005)
