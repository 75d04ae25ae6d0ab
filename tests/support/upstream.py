"""An instant engine on a unix socket: answers the engine protocol at once, or as it is scripted.

Tests capture what the gateway sends and make it slow, broken or refusing; benchmarks put it behind
the gateway to measure the gateway alone.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

WORDS = (" one", " two", " three", " four")


@dataclass
class Script:
    """How the upstream behaves from now on; tests change it between requests."""

    slots: int = 16
    kv_tokens: int = 65_536
    max_model_len: int = 8_192
    tokens: int = 4
    cached_tokens: int | None = 0
    cached_said_late: bool = False
    before_headers_s: float = 0.0
    before_first_s: float = 0.0
    between_s: float = 0.0
    before_abort_s: float = 0.0
    status: int = 200
    break_after: int | None = None
    error_after: int | None = None
    first_index: int = 0
    capacity_status: int = 200


@dataclass
class Upstream:
    """What it was asked, and its script."""

    model: str
    script: Script = field(default_factory=Script)
    requests: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    running: dict[str, asyncio.Event] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    capture: bool = True
    words: str | None = None
    token: int = 260
    likelier: tuple[tuple[int, float], ...] = ((2, -0.5), (253, -1.0))

    def app(self) -> web.Application:
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/abort/{id}", self._abort)
        app.router.add_get("/capacity", self._capacity)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _capacity(self, _request: web.Request) -> web.Response:
        script = self.script
        if script.capacity_status != 200:
            return web.Response(status=script.capacity_status)
        return web.json_response(
            {
                "slots": script.slots,
                "running": len(self.running),
                "waiting": 0,
                "kv_tokens": {"total": script.kv_tokens, "free": script.kv_tokens},
                "block_size": 16,
                "sequence": 1,
                "model": self.model,
                "max_model_len": script.max_model_len,
            }
        )

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text="evenhand_engine_requests_running 0\n")

    async def _abort(self, request: web.Request) -> web.Response:
        request_id = request.match_info["id"]
        self.aborted.append(request_id)
        await asyncio.sleep(self.script.before_abort_s)
        ending = self.running.get(request_id)
        if ending is None:
            return web.json_response({"aborted": False}, status=404)
        ending.set()
        return web.json_response({"aborted": True})

    def _logprobs(self, asked) -> dict | None:
        """Of one token with every text: `token`, beside the likelier ones of `likelier`."""
        num_top = asked.get("logprobs")
        if num_top is None:
            return None
        top = {f"token_id:{token}": logprob for token, logprob in self.likelier[:num_top]}
        top[f"token_id:{self.token}"] = -1.5
        return {
            "tokens": [f"token_id:{self.token}"],
            "token_logprobs": [-1.5],
            "top_logprobs": [top],
            "text_offset": [0],
        }

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if self.capture:
            self.requests.append(asked)
            self.headers.append(dict(request.headers))
        script = self.script
        if script.status != 200:
            error = {"message": "no", "type": "x", "param": None, "code": 7}
            return web.json_response({"error": error}, status=script.status)
        request_id = asked["request_id"]
        ending = self.running[request_id] = asyncio.Event()
        try:
            return await self._answer(request, asked, ending)
        finally:
            del self.running[request_id]

    async def _answer(self, request, asked, ending) -> web.StreamResponse:
        script = self.script
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if await _pause(script.before_headers_s, ending):
            return web.json_response({"error": {"message": "aborted", "code": None}}, status=409)
        await response.prepare(request)
        if await _pause(script.before_first_s, ending):
            await response.write(_event({"error": {"message": "aborted"}}))
            return response
        count = min(script.tokens, asked["max_tokens"])
        choices = range(asked.get("n", 1))
        parts = [self._chunk(asked, choice, "", None, 0) for choice in choices]
        for index in range(1, count + 1):
            if script.between_s:
                await response.write(b"".join(parts))
                parts = []
                if await _pause(script.between_s, ending):
                    await response.write(_event({"error": {"message": "aborted"}}))
                    return response
            if script.break_after is not None and index > script.break_after:
                await response.write(b"".join(parts))
                request.transport.abort()
                raise asyncio.CancelledError  # nobody is left to answer
            if script.error_after is not None and index > script.error_after:
                parts.append(_event({"error": {"message": "secret engine words"}}))
                await response.write(b"".join(parts))
                return response
            reason = None if index < count else ("length" if count < script.tokens else "stop")
            for choice in choices:
                word = self.words or WORDS[(index + choice) % len(WORDS)]
                total = (index - 1) * len(choices) + choice + 1
                parts.append(self._chunk(asked, choice, word, reason, total))
                self.emitted[asked["request_id"]] = total
        usage = self._usage(asked, count * len(choices), last=True)
        parts += [_event({"choices": [], "usage": usage}), b"data: [DONE]\n\n"]
        await response.write(b"".join(parts))
        await response.write_eof()
        return response

    def _usage(self, asked, output, *, last=False) -> dict:
        usage = {
            "prompt_tokens": len(asked["prompt"]),
            "completion_tokens": output,
            "total_tokens": len(asked["prompt"]) + output,
        }
        said = last or not self.script.cached_said_late
        if said and self.script.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.script.cached_tokens}
        return usage

    def _chunk(self, asked, index, text, reason, output) -> bytes:
        choice = {
            "index": self.script.first_index + index,
            "text": text,
            "logprobs": self._logprobs(asked) if text else None,
            "finish_reason": reason,
        }
        return _event(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1,
                "model": self.model,
                "choices": [choice],
                "usage": self._usage(asked, output),
            }
        )


def _event(payload) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


async def _pause(seconds: float, ending: asyncio.Event) -> bool:
    """Wait; True when the request was aborted meanwhile."""
    if not seconds:
        return ending.is_set()
    try:
        await asyncio.wait_for(ending.wait(), seconds)
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def serve(upstream: Upstream, path: str):
    """Run it on a unix socket; yields its engine address."""
    runner = web.AppRunner(
        upstream.app(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True
    )
    await runner.setup()
    await web.UnixSite(runner, path).start()
    try:
        yield f"unix:{path}"
    finally:
        await runner.cleanup()
