"""An upstream that answers every completion at once, as cheaply as Python can: a ruler.

It speaks just enough HTTP on a unix socket for a gateway to take it for an engine with plenty of
room. Each completion is one admission event, four tokens, the usage and [DONE], in one write.
"""

import asyncio
import json
import sys
from typing import Any

import uvloop

MODEL = "smollm2-135m"
TOKENS = (" The", " answer", " is", " yes")
PROMPT_TOKENS = 40


def _event(index: int, *, finished: bool) -> dict[str, Any]:
    return {
        "id": "cmpl-instant",
        "object": "text_completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "text": TOKENS[index - 1] if index else "",
                "logprobs": None,
                "finish_reason": "length" if finished else None,
            }
        ],
        "usage": _usage(index),
    }


def _usage(output: int) -> dict[str, Any]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": output,
        "total_tokens": PROMPT_TOKENS + output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _stream() -> bytes:
    events = [_event(index, finished=index == len(TOKENS)) for index in range(len(TOKENS) + 1)]
    last = events[-1] | {"choices": []}
    return b"".join(b"data: %b\n\n" % json.dumps(e).encode() for e in [*events, last]) + (
        b"data: [DONE]\n\n"
    )


def _answer(body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


_CAPACITY = {
    "slots": 1_000,
    "running": 0,
    "waiting": 0,
    "kv_tokens": {"total": 10**7, "free": 10**7, "cached": 0, "held": 0},
    "block_size": 16,
    "sequence": 1,
    "model": MODEL,
    "max_model_len": 8_192,
}
_MODELS = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1, "owned_by": "x"}],
}
ANSWERS = {
    b"POST /v1/completions": _answer(_stream(), "text/event-stream"),
    b"GET /capacity": _answer(json.dumps(_CAPACITY).encode(), "application/json"),
    b"GET /v1/models": _answer(json.dumps(_MODELS).encode(), "application/json"),
    b"GET /health": _answer(b"{}", "application/json"),
    b"GET /metrics": _answer(b"", "text/plain"),
}


NOTHING = _answer(b"{}", "application/json")


class Instant(asyncio.Protocol):
    """Answers each request as soon as its body has arrived, an abort by an empty object."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            route = b" ".join(head.split(b" ", 2)[:2])
            self._transport.write(ANSWERS.get(route, NOTHING))


async def serve(socket: str) -> None:
    """Listen until killed."""
    server = await asyncio.get_running_loop().create_unix_server(Instant, socket)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
