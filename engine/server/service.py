"""From a parsed request to a running one: tokens, limits, identity; all routes share it."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.context import Context

from engine.core.errors import NamespaceInUse, PinLimit
from engine.core.request import Request, SamplingParams
from engine.protocol.checks import visible_ascii
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import (
    Chat,
    ChatRequest,
    CompletionRequest,
    EngineFields,
    EraseRequest,
    PinRequest,
    Prompt,
    Sampling,
)
from engine.protocol.text.detokenizer import Detokenizer
from engine.protocol.text.model import TextModel
from engine.protocol.text.stop import StopScanner
from engine.server.answers import Dialect
from engine.server.errors import CacheInUse, EngineDraining, ModelNotFound, PinLimitReached
from engine.server.journey import Sample, Submission
from engine.server.loop import EngineLoop
from engine.server.output import Echo, OutputText, TokenListing, echo_of
from engine.server.params import Room, sampling_params
from engine.server.places import Place, Places
from engine.server.stream import TokenStream

_REQUEST_ID: Final = visible_ascii(128)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the routes hold clients to. `max_model_len` bounds prompt and output together."""

    max_model_len: int
    num_slots: int
    block_size: int
    write_deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request came, on both clocks, in whose trace, and the place it got."""

    at: float
    at_ns: int
    trace: Context | None
    place: Place


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request on its way, as its handler sees it.

    `echo` is its prompt as text, where that was asked for; `bad_words` are the ids that spell them.
    """

    request_id: str
    stream: TokenStream
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    echo: Echo | None
    bad_words: tuple[tuple[int, ...], ...]


class EngineService:
    """Everything the routes need; lives on the event loop's thread."""

    def __init__(self, loop: EngineLoop, text: TextModel, limits: Limits, places: Places) -> None:
        self.loop: Final = loop
        self.text: Final = text
        self.limits: Final = limits
        self.created: Final = int(time.time())
        self._places: Final = places
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
        at, at_ns = time.monotonic(), time.time_ns()
        if self._draining:
            raise EngineDraining
        self.require_model(request.model)
        request_id = (
            _engine_fields(request).request_id or _header_id(named) or secrets.token_hex(16)
        )
        place = self._places.take(request.sampling.n)
        arrival = Arrival(at, at_ns, trace, place)
        try:
            prompt = await self.encode(_prompt(request))
            room = Room(len(prompt), self.limits.max_model_len, dialect.prompt_param)
            room.output_tokens(request.sampling.max_tokens)  # before a lost cause costs more
            ticket = await self._ticket(request, request_id, prompt)
            submission = self._submission(request, ticket, dialect, arrival)
            place.prompt(len(prompt))
            self.loop.submit(submission)
        except BaseException:
            place.release()
            raise
        return ticket

    async def _ticket(
        self, request: ChatRequest | CompletionRequest, request_id: str, prompt: tuple[int, ...]
    ) -> Ticket:
        """What takes long is done off the event loop, as tokenizing is."""
        sampling = request.sampling
        stream = TokenStream(request_id, sampling.n)
        echo = None
        if sampling.echo:
            detokenizer = self._detokenizer(sampling, ())
            echo = await asyncio.to_thread(echo_of, detokenizer, prompt)
        bad_words: tuple[tuple[int, ...], ...] = ()
        if sampling.bad_words:
            bad_words = await asyncio.to_thread(self._spellings, sampling.bad_words)
        return Ticket(request_id, stream, prompt, sampling, echo, bad_words)

    def _spellings(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(ids for word in words for ids in self.text.word_ids(word))

    def _submission(
        self,
        request: ChatRequest | CompletionRequest,
        ticket: Ticket,
        dialect: Dialect,
        arrival: Arrival,
    ) -> Submission:
        limit = self.limits.max_model_len
        room = Room(len(ticket.prompt_token_ids), limit, dialect.prompt_param)
        params = sampling_params(ticket.sampling, ticket.bad_words, self.text, room)
        return Submission(
            request_id=ticket.request_id,
            samples=tuple(
                Sample(index, _core_request(request, ticket, index, each), self._output(ticket))
                for index, each in enumerate(params)
            ),
            stream=ticket.stream,
            place=arrival.place,
            prompt_param=dialect.prompt_param,
            operation=dialect.operation,
            trace=arrival.trace,
            arrived_at=arrival.at,
            arrived_ns=arrival.at_ns,
        )

    def _output(self, ticket: Ticket) -> OutputText:
        sampling = ticket.sampling
        listed = sampling.logprobs is not None or sampling.return_token_ids
        begin = len(ticket.echo.text) if ticket.echo else 0
        return OutputText(
            self._detokenizer(sampling, ticket.prompt_token_ids),
            StopScanner(sampling.stop, include=sampling.include_stop_str_in_output),
            min_tokens=sampling.min_tokens,
            show_stop_token=sampling.include_stop_str_in_output,
            listing=TokenListing(begin) if listed else None,
        )

    def _detokenizer(self, sampling: Sampling, prompt: Sequence[int]) -> Detokenizer:
        return self.text.detokenizer(prompt, special=not sampling.skip_special_tokens)

    async def pin(self, request: PinRequest) -> dict[str, int]:
        """Keep a prompt's cached blocks from eviction, or let them go; the body of the answer.

        Raises InvalidRequest, ModelNotFound, PinLimitReached.
        """
        self.require_model(request.model)
        prompt = await self.encode(request.prompt)
        param = "messages" if isinstance(request.prompt, Chat) else "prompt"
        Room(len(prompt), self.limits.max_model_len, param).output_tokens(1)
        pinned = 0
        try:
            if request.pinned:
                pinned = await self.loop.call(lambda core: core.pin(request.cache_salt, prompt))
            else:
                await self.loop.call(lambda core: core.unpin(request.cache_salt, prompt))
        except PinLimit as error:
            raise PinLimitReached from error
        return {"pinned_tokens": pinned, "prompt_tokens": len(prompt)}

    async def erase(self, request: EraseRequest) -> dict[str, int]:
        """Forget what is cached in a namespace; the body of the answer. Raises CacheInUse."""
        try:
            erased = await self.loop.call(lambda core: core.erase(request.cache_salt))
        except NamespaceInUse as error:
            raise CacheInUse from error
        return {"erased_blocks": erased}

    def capacity(self) -> dict[str, Any]:
        """The body of `GET /capacity`; KV figures in tokens.

        `total` is without the configured reserve; what is pinned is cached or held as well.
        """
        snapshot, tokens_in = self.loop.snapshot, self.loop.config.tokens_in
        stats = snapshot.stats
        return {
            "model": self.model_id,
            "max_model_len": self.limits.max_model_len,
            "slots": self.limits.num_slots,
            "running": stats.running,
            "waiting": stats.waiting,
            "block_size": self.limits.block_size,
            "kv_tokens": {
                "total": stats.kv_tokens,
                "free": tokens_in(stats.free_blocks),
                "cached": tokens_in(stats.cached_blocks),
                "held": tokens_in(stats.held_blocks),
                "pinned": tokens_in(stats.pinned_blocks),
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


def _core_request(
    request: ChatRequest | CompletionRequest, ticket: Ticket, index: int, params: SamplingParams
) -> Request:
    """The first sample has the request's own id; those of later ones no client can choose."""
    fields = _engine_fields(request)
    return Request(
        request_id=f"{ticket.request_id} {index}" if index else ticket.request_id,
        prompt_token_ids=ticket.prompt_token_ids,
        sampling=params,
        namespace=fields.cache_salt,
        use_cache=request.cache.enabled,
        owner=fields.cache_owner or fields.cache_salt,
        weight=fields.cache_weight or 1,
    )


def _prompt(request: ChatRequest | CompletionRequest) -> Prompt:
    return Chat(request.messages) if isinstance(request, ChatRequest) else request.prompt


def _engine_fields(request: ChatRequest | CompletionRequest) -> EngineFields:
    if request.engine is None:
        raise RuntimeError("a request for the engine was parsed for another audience")
    return request.engine


def _header_id(named: str | None) -> str | None:
    return None if named is None else str(_REQUEST_ID(named, "x-request-id"))
