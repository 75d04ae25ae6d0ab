"""Reading requests off the event loop: whose turn it is, and what is never begun."""

import asyncio
import json
import threading
from uuid import uuid4

import pytest

from engine.protocol.errors import InvalidRequest
from gateway.admission import BULK_BYTES, CHAT, COMPLETIONS, INLINE_BYTES, Tokenizers


class SlowText:
    """A text model that encodes nothing before `go`, and notes in which order it was asked."""

    context_length = 8_192
    vocab_size = 10
    max_prompt_bytes = 10**9

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()
        self.asked = []

    def encode(self, text):
        self.asked.append(text.strip())
        self.begun.set()
        self.go.wait()
        return [1]

    def encode_chat(self, messages):
        raise AssertionError("no template could make so many messages fit")


def completion(name, size):
    return json.dumps({"model": "m", "prompt": name.ljust(size)}).encode()


@pytest.mark.parametrize("size", [INLINE_BYTES, BULK_BYTES], ids=["small", "bulk"])
async def test_no_tenant_waits_behind_the_crowd_of_another(size):
    text = SlowText()
    tokenizers = Tokenizers({"m": text})
    crowd, other = uuid4(), uuid4()
    waiting = [
        asyncio.ensure_future(tokenizers.prepare(tenant, COMPLETIONS, completion(name, size)))
        for tenant, name in [*[(crowd, "crowd")] * 5, (other, "other")]
    ]
    await asyncio.to_thread(text.begun.wait)
    text.go.set()
    await asyncio.gather(*waiting)
    tokenizers.close()
    assert text.asked[:2] == ["crowd", "other"]
    assert len(text.asked) == 6


async def test_more_messages_than_the_context_has_tokens_are_refused_unrendered():
    message = {"role": "user", "content": ""}
    body = json.dumps({"model": "m", "messages": [message] * 8_193}).encode()
    tokenizers = Tokenizers({"m": SlowText()})
    with pytest.raises(InvalidRequest, match="8193 messages") as refusal:
        await tokenizers.prepare(uuid4(), CHAT, body)
    assert refusal.value.code == "context_length_exceeded"
    tokenizers.close()
