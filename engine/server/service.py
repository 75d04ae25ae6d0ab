"""From a parsed request to a running one: tokens, limits, identity; all routes share it."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.context import Context

from engine.core.request import Request, SamplingParams
from engine.protocol.checks import visible_ascii
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import (
    Chat,
    ChatRequest,
    CompletionRequest,
    EngineFields,
    Prompt,
    Sampling,
)
from engine.protocol.text.model import TextModel
from engine.protocol.text.stop import StopScanner
from engine.server.answers import Dialect
from engine.server.errors import EngineDraining, ModelNotFound, context_length_exceeded
from engine.server.journey import Submission
from engine.server.loop import EngineLoop
from engine.server.output import OutputText
from engine.server.stream import TokenStream

_REQUEST_ID: Final = visible_ascii(128)
_SEED_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the routes hold clients to. `max_model_len` bounds prompt and output together."""

    max_model_len: int
    num_slots: int
    block_size: int
    write_deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted request as its handler sees it."""

    request_id: str
    stream: TokenStream
    prompt_tokens: int


class EngineService:
    """Everything the routes need; lives on the event loop's thread."""

    def __init__(self, loop: EngineLoop, text: TextModel, limits: Limits) -> None:
        self.loop: Final = loop
        self.text: Final = text
        self.limits: Final = limits
        self.created: Final = int(time.time())
        self._draining = False

    @property
    def model_id(self) -> str:
        """The one model served."""
        return self.text.model_id

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        return self._draining

    def drain(self) -> None:
        """Refuse new requests from now on; running ones go on."""
        self._draining = True

    def require_model(self, model: str) -> None:
        """Raise ModelNotFound unless `model` is the one served."""
        if model != self.model_id:
            raise ModelNotFound

    async def submit(
        self,
        request: ChatRequest | CompletionRequest,
        dialect: Dialect,
        *,
        named: str | None,
        trace: Context | None,
    ) -> Ticket:
        """Hand a request to the engine. Raises InvalidRequest and ServerError.

        Its id is the one the request or the header `named` gives, else 128 random bits.
        """
        arrived_at, arrived_ns = time.monotonic(), time.time_ns()
        if self._draining:
            raise EngineDraining
        self.require_model(request.model)
        fields = _engine_fields(request)
        prompt = await self.encode(_prompt(request))
        request_id = fields.request_id or _header_id(named) or secrets.token_hex(16)
        stream = TokenStream(request_id)
        self.loop.submit(
            Submission(
                request=Request(
                    request_id=request_id,
                    prompt_token_ids=prompt,
                    sampling=self._sampling(request.sampling, len(prompt), dialect.prompt_param),
                    namespace=fields.cache_salt,
                    use_cache=request.cache.enabled,
                ),
                output=OutputText(
                    self.text.detokenizer(prompt), StopScanner(request.sampling.stop)
                ),
                stream=stream,
                prompt_param=dialect.prompt_param,
                operation=dialect.operation,
                trace=trace,
                arrived_at=arrived_at,
                arrived_ns=arrived_ns,
            )
        )
        return Ticket(request_id, stream, len(prompt))

    def capacity(self) -> dict[str, Any]:
        """The body of `GET /capacity`; KV figures in tokens, `total` without the reserve."""
        snapshot, block_size = self.loop.snapshot, self.limits.block_size
        stats = snapshot.stats
        return {
            "model": self.model_id,
            "max_model_len": self.limits.max_model_len,
            "slots": self.limits.num_slots,
            "running": stats.running,
            "waiting": stats.waiting,
            "block_size": block_size,
            "kv_tokens": {
                "total": stats.kv_tokens,
                "free": stats.free_blocks * block_size,
                "cached": stats.cached_blocks * block_size,
                "held": stats.held_blocks * block_size,
            },
            "sequence": snapshot.sequence,
        }

    def release(self, ticket: Ticket) -> None:
        """The handler is done with the stream: abort the request unless it has ended."""
        if not ticket.stream.ended:
            self.loop.abort(ticket.request_id, ticket.stream)

    async def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt; text is tokenized off the event loop. Raises InvalidRequest."""
        match prompt:
            case str():
                ids = tuple(await asyncio.to_thread(self.text.encode, prompt))
            case Chat(messages):
                ids = tuple(await asyncio.to_thread(self.text.encode_chat, messages))
            case _:
                ids = prompt
                self._require_known_tokens(ids)
        if not ids:
            raise InvalidRequest("The prompt is empty.", param="prompt", code="invalid_value")
        return ids

    def _require_known_tokens(self, ids: Sequence[int]) -> None:
        if max(ids, default=0) >= self.text.vocab_size:
            raise InvalidRequest(
                f"A token id of the prompt is not below {self.text.vocab_size}, the vocabulary's "
                "size.",
                param="prompt",
                code="invalid_value",
            )

    def _sampling(self, wanted: Sampling, prompt_tokens: int, param: str) -> SamplingParams:
        """Longer outputs than the context has room for end with `length`, as documented."""
        left = self.limits.max_model_len - prompt_tokens
        if left < 1:
            raise context_length_exceeded(param, prompt_tokens, self.limits.max_model_len)
        stop_ids = frozenset(wanted.stop_token_ids)
        if not wanted.ignore_eos:
            stop_ids |= self.text.eos_token_ids
        seed = secrets.randbits(64) if wanted.seed is None else wanted.seed & _SEED_MASK
        return SamplingParams(
            max_tokens=left if wanted.max_tokens is None else min(wanted.max_tokens, left),
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            seed=seed,
            stop_token_ids=stop_ids,
        )


def _prompt(request: ChatRequest | CompletionRequest) -> Prompt:
    return Chat(request.messages) if isinstance(request, ChatRequest) else request.prompt


def _engine_fields(request: ChatRequest | CompletionRequest) -> EngineFields:
    if request.engine is None:
        raise RuntimeError("a request for the engine was parsed for another audience")
    return request.engine


def _header_id(named: str | None) -> str | None:
    return None if named is None else str(_REQUEST_ID(named, "x-request-id"))
