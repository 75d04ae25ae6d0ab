"""From a body to an admitted request: strict parse, tokens, then every limit of a single request.

Parsing and tokenizing run off the event loop, in two lanes: a small request never waits behind
somebody's two-megabyte prompt. Only what costs less than the way to a thread and back is done where
it is. What many requests share is reserved after all this, by `gateway.quotas`.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

from engine.protocol import metrics, strict_json, wire
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import CacheChoice, ChatRequest, CompletionRequest, Sampling
from engine.protocol.requests import StreamOptions as Delivery
from engine.protocol.text.model import TextModel
from engine.protocol.wire import Audience
from fairness.types import TenantTerms
from gateway.errors import ModelNotFound
from tenancy.entities import EffectiveLimit, TenantContext

# Of a body this short the loop is held for 0.2 ms as a rule and about 1 ms at worst; handing it to
# a thread costs 0.3 ms more, most of it the two threads' contest for the interpreter.
INLINE_BYTES: Final = 512
BULK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Route:
    """What differs between the two inference routes before the engine is asked."""

    name: str
    prompt_param: str
    operation: str
    parse: Callable[[dict[str, Any], Audience], ChatRequest | CompletionRequest]


CHAT: Final = Route("/v1/chat/completions", "messages", metrics.OPERATION_CHAT, wire.parse_chat)
COMPLETIONS: Final = Route(
    "/v1/completions", "prompt", metrics.OPERATION_COMPLETION, wire.parse_completion
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was read and tokenized; no limit has been looked at."""

    model: str
    prompt: tuple[int, ...]
    sampling: Sampling
    delivery: Delivery
    cache: CacheChoice
    max_tokens_param: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request within every limit, with the output limit it will run under."""

    prepared: Prepared
    max_tokens: int
    terms: TenantTerms


class _Lane:
    """A thread pool with one request of each tenant in it: nobody waits behind another's crowd."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        # A turn lives as long as somebody has it or waits for it.
        self._turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def run(self, tenant_id: UUID, work: Callable[[], Prepared]) -> Prepared:
        """What `work` returns or raises."""
        turn = self._turns.setdefault(tenant_id, asyncio.Lock())
        async with turn:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Stop the threads; what runs is finished, what waits is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Tokenizers:
    """Reads requests for the pools this gateway serves, off the event loop unless tiny."""

    def __init__(self, models: dict[str, TextModel], *, threads: int = 1) -> None:
        self._models = models
        self._small = _Lane("tokenize", threads)
        self._bulk = _Lane("tokenize-bulk", 1)

    async def prepare(self, tenant_id: UUID, route: Route, body: bytes) -> Prepared:
        """Raises InvalidRequest and ModelNotFound."""
        if len(body) <= INLINE_BYTES:
            return self._prepare(route, body)
        lane = self._bulk if len(body) > BULK_BYTES else self._small
        return await lane.run(tenant_id, partial(self._prepare, route, body))

    def _prepare(self, route: Route, body: bytes) -> Prepared:
        members = strict_json.parse_object(body)
        request = route.parse(members, Audience.PUBLIC)
        text = self._models.get(request.model)
        if text is None:
            raise ModelNotFound(
                f"The model `{request.model}` does not exist or you do not have access to it.",
                param="model",
            )
        _require_known_biases(text, request.sampling)
        newer = members.get("max_completion_tokens") is not None
        return Prepared(
            model=request.model,
            prompt=_encode(text, request),
            sampling=request.sampling,
            delivery=request.delivery,
            cache=request.cache,
            max_tokens_param="max_completion_tokens" if newer else "max_tokens",
        )

    def close(self) -> None:
        """Stop the threads; what runs is finished, what waits is dropped."""
        self._small.close()
        self._bulk.close()


def _encode(text: TextModel, request: ChatRequest | CompletionRequest) -> tuple[int, ...]:
    if isinstance(request, ChatRequest):
        if (num_messages := len(request.messages)) > text.context_length:
            raise _too_long(  # a message is at least one token, and the template is slow with them
                f"This model's maximum context length is {text.context_length} tokens, and there"
                f" are {num_messages} messages.",
                "messages",
            )
        _require_possible(text, sum(len(m.content) for m in request.messages), "messages")
        return tuple(text.encode_chat(request.messages))
    if isinstance(request.prompt, tuple):
        if max(request.prompt) >= text.vocab_size:
            raise InvalidRequest(
                f"Token ids must be below {text.vocab_size}, the size of the model's vocabulary.",
                param="prompt",
                code="invalid_value",
            )
        return request.prompt
    _require_possible(text, len(request.prompt), "prompt")
    prompt = tuple(text.encode(request.prompt))
    if not prompt:
        raise InvalidRequest("The prompt is empty.", param="prompt", code="invalid_value")
    return prompt


def _require_known_biases(text: TextModel, sampling: Sampling) -> None:
    for token_id, _ in sampling.logit_bias:
        if token_id >= text.vocab_size:
            raise InvalidRequest(
                f"Token ids must be below {text.vocab_size}, the size of the model's vocabulary.",
                param=f"logit_bias.{token_id}",
                code="invalid_value",
            )


def _require_possible(text: TextModel, num_chars: int, param: str) -> None:
    """Spare the tokenizer what no tokenization could fit; a character is at least one byte."""
    if num_chars > text.max_prompt_bytes:
        raise _too_long(
            f"This model's maximum context length is {text.context_length} tokens, and the prompt"
            f" has {num_chars} characters.",
            param,
        )


def admit(
    prepared: Prepared,
    context: TenantContext,
    *,
    context_length: int,
    prompt_param: str,
    fits: Callable[[int, int], bool],
) -> Admitted:
    """Check the prompt and the output against model, pool and tenant. Raises InvalidRequest."""
    num_prompt = len(prepared.prompt)
    if num_prompt + 1 > context_length:
        raise _too_long(
            f"This model's maximum context length is {context_length} tokens, and the prompt has"
            f" {num_prompt}.",
            prompt_param,
        )
    limits = context.key_limits
    if num_prompt > limits.max_prompt.value:
        raise _too_long(
            f"The prompt has {num_prompt} tokens, over the max_prompt limit of"
            f" {limits.max_prompt.value} tokens set by the {limits.max_prompt.level}.",
            prompt_param,
        )
    if not fits(num_prompt + 1, 1):
        raise _too_long(
            f"The prompt has {num_prompt} tokens, more than this model's servers can hold.",
            prompt_param,
        )
    _require_room(prepared, context.limits.concurrency, fits)
    return Admitted(
        prepared, _max_tokens(prepared, limits.max_output, context_length), terms_of(context)
    )


def _require_room(
    prepared: Prepared, limit: EffectiveLimit, fits: Callable[[int, int], bool]
) -> None:
    """All choices of a request run at once, so together they must fit what one may hold."""
    n = prepared.sampling.n
    if n > limit.value:
        raise InvalidRequest(
            f"n is {n}, over the concurrency limit of {limit.value} sequences set by the"
            f" {limit.level}.",
            param="n",
            code="invalid_value",
        )
    if n > 1 and not fits(len(prepared.prompt) + 1, n):
        raise InvalidRequest(
            f"n is {n}: so many answers to a prompt of {len(prepared.prompt)} tokens are more than"
            " this model's servers can hold.",
            param="n",
            code="invalid_value",
        )


def _max_tokens(prepared: Prepared, limit: EffectiveLimit, context_length: int) -> int:
    left = context_length - len(prepared.prompt)
    wanted = prepared.sampling.max_tokens
    if wanted is None:
        return min(limit.value, left)
    param = prepared.max_tokens_param
    if wanted > limit.value:
        raise InvalidRequest(
            f"{param} is {wanted}, over the max_output limit of {limit.value} tokens set by the"
            f" {limit.level}.",
            param=param,
            code="invalid_value",
        )
    if wanted > left:
        raise _too_long(
            f"This model's maximum context length is {context_length} tokens: with"
            f" {len(prepared.prompt)} in the prompt, {param} can be at most {left}, not {wanted}.",
            param,
        )
    return wanted


def _too_long(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="context_length_exceeded")


def terms_of(context: TenantContext) -> TenantTerms:
    """The tenant's own limits: what a single key narrows is no part of the tenant's bound."""
    limits = context.limits
    return TenantTerms(
        weight_milli=context.weight_milli,
        concurrency=limits.concurrency.value,
        max_prompt_tokens=limits.max_prompt.value,
        max_output_tokens=limits.max_output.value,
    )
