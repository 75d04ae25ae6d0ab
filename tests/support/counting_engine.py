"""An engine that invents tokens at a steady pace and keeps its own count of them, tenant by tenant.

It speaks what the gateway asks of an engine, in a thread of the test's process, and so outlives
every gateway that a test kills. Its count is what a gateway's charges are compared with.
"""

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from fairness.cost import output_cost, prompt_cost
from fairness.types import Prices

BLOCK = 16


@dataclass
class Served:
    """One request as the engine knows it; `emitted` are the moments of its tokens."""

    owner: str
    prompt: tuple[int, ...]
    cached: int
    incarnation: int
    emitted: list[float] = field(default_factory=list)

    def charge(self, until: float, prices: Prices) -> int:
        """What it comes to in milli-units by its tokens before `until`: nothing without one."""
        output = sum(moment < until for moment in self.emitted)
        if not output:
            return 0
        prompt = prompt_cost(prices, len(self.prompt), self.cached)
        return prompt + output_cost(prices, output)


class CountingEngine:
    """Serves on a unix socket between `start` and `stop`; notes `incarnation` at each request."""

    def __init__(self, model: str, path: Path, *, slots: int, pace_s: float) -> None:
        self.served: list[Served] = []
        self.incarnation = 0
        self.model = model
        self._path = path
        self._slots = slots
        self._pace_s = pace_s
        self._aborted: dict[str, asyncio.Event] = {}
        self._known: dict[str, set[tuple[int, ...]]] = {}
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def address(self) -> str:
        return f"unix:{self._path}"

    def start(self) -> None:
        """Return once it listens."""
        self._thread.start()
        assert self._up.wait(10)

    def stop(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def charges(self, incarnation: int, until: float, prices: Prices) -> dict[str, int]:
        """By owner, what the requests of one gateway came to by the tokens before `until`."""
        sums: dict[str, int] = {}
        for one in self.served:
            if one.incarnation == incarnation:
                sums[one.owner] = sums.get(one.owner, 0) + one.charge(until, prices)
        return sums

    # --- serving -----------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = web.AppRunner(
            self._app(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.UnixSite(runner, str(self._path)).start())
        self._up.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/abort/{id}", self._abort)
        app.router.add_get("/capacity", self._capacity)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _capacity(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "slots": self._slots,
                "running": len(self._aborted),
                "waiting": 0,
                "kv_tokens": {"total": 1 << 20, "free": 1 << 20},
                "block_size": BLOCK,
                "sequence": 1,
                "model": self.model,
                "max_model_len": 8_192,
            }
        )

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text=f"evenhand_engine_requests_running {len(self._aborted)}\n")

    async def _abort(self, request: web.Request) -> web.Response:
        ending = self._aborted.get(request.match_info["id"])
        if ending is None:
            return web.json_response({"aborted": False}, status=404)
        ending.set()
        return web.json_response({"aborted": True})

    def _cached(self, namespace: str, prompt: tuple[int, ...]) -> int:
        """Whole blocks at the prompt's beginning that were seen before, and see it now."""
        known = self._known.setdefault(namespace, set())
        beginnings = [prompt[:end] for end in range(BLOCK, len(prompt), BLOCK)]
        hits = [beginning for beginning in beginnings if beginning in known]
        known.update(beginnings)
        return len(hits[-1]) if hits else 0

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        prompt = tuple(asked["prompt"])
        cached = self._cached(asked["cache_salt"], prompt)
        served = Served(asked["cache_owner"], prompt, cached, self.incarnation)
        self.served.append(served)
        ending = self._aborted[asked["request_id"]] = asyncio.Event()
        try:
            return await self._stream(request, asked, served, ending)
        finally:
            del self._aborted[asked["request_id"]]

    async def _stream(self, request, asked, served: Served, ending) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self._event(served, "", None))
        for number in range(1, asked["max_tokens"] + 1):
            if await _aborted_within(self._pace_s, ending):
                await response.write(_sse({"error": {"message": "aborted"}}))
                return response
            reason = "length" if number == asked["max_tokens"] else None
            served.emitted.append(time.monotonic())
            await response.write(self._event(served, " word", reason))
        await response.write(_sse({"choices": [], "usage": _usage(served)}) + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _event(self, served: Served, text: str, reason: str | None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return _sse(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1,
                "model": self.model,
                "choices": [choice],
                "usage": _usage(served),
            }
        )


def _usage(served: Served) -> dict:
    prompt, output = len(served.prompt), len(served.emitted)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": served.cached},
    }


def _sse(payload: dict) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


async def _aborted_within(seconds: float, ending: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(ending.wait(), seconds)
    except TimeoutError:
        return False
    return True
