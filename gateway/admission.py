"""From a body to a reserved request: strict parse, tokens, limits, then all reservations or none.

Parsing and tokenizing run off the event loop, in two lanes: a small request never waits behind
somebody's two-megabyte prompt. Only what costs less than the way to a thread and back is done where
it is. Nothing is reserved before every check has passed, and a refusal
takes nothing.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

from engine.protocol import metrics, strict_json, wire
from engine.protocol.errors import InvalidRequest
from engine.protocol.requests import CacheChoice, ChatRequest, CompletionRequest, Sampling
from engine.protocol.requests import StreamOptions as Delivery
from engine.protocol.text.model import TextModel
from engine.protocol.wire import Audience
from fairness.reservation import Demand, Dimension, LimitBook, Refusal
from fairness.types import TenantTerms
from gateway.errors import Headers, LimitExceeded, ModelNotFound, QueueFull
from tenancy.entities import EffectiveLimit, EffectiveLimits, TenantContext

# Of a body this short the loop is held for 0.2 ms as a rule and about 1 ms at worst; handing it to
# a thread costs 0.3 ms more, most of it the two threads' contest for the interpreter.
INLINE_BYTES: Final = 512
BULK_BYTES: Final = 64 * 1024
LIMITS_CACHED: Final = 1_024
# The headers' names for our dimensions, in the order they are sent.
HEADER_NAMES: Final = {
    Dimension.RPM: b"requests",
    Dimension.TPM: b"tokens",
    Dimension.UNCACHED_TPM: b"uncached-tokens",
}
LIMIT_FIELDS: Final = {
    Dimension.RPM: "rpm",
    Dimension.TPM: "tpm",
    Dimension.UNCACHED_TPM: "uncached_tpm",
    Dimension.QUEUED: "max_queued",
}


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


class Quotas:
    """Reservations of this gateway, by tenant and by key."""

    def __init__(self, book: LimitBook, clock: Callable[[], float]) -> None:
        self._book = book
        self._clock = clock
        # What a snapshot limits never changes: worked out once per key and revision.
        self._limits = lru_cache(LIMITS_CACHED)(_limits)

    def reserve(self, request_id: str, context: TenantContext, admitted: Admitted) -> None:
        """Take a place and the worst case of every limit, or nothing. Raises LimitExceeded."""
        num_prompt = len(admitted.prepared.prompt)
        amounts = {
            Dimension.RPM: 1,
            Dimension.TPM: num_prompt + admitted.prepared.sampling.n * admitted.max_tokens,
            Dimension.UNCACHED_TPM: num_prompt,
            Dimension.QUEUED: 1,
        }
        demands = [
            Demand(subject, dimension, amounts[dimension], limit.value, limit.level)
            for subject, dimension, limit in self._limits(_Key(context))
        ]
        outcome = self._book.reserve(self._clock(), request_id, demands)
        if isinstance(outcome, Refusal):
            raise _limit_exceeded(outcome, context)

    def granted(self, request_id: str) -> None:
        """The request left its queue: its place is free."""
        self._book.leave_queue(request_id)

    def settle(self, request_id: str, *, prompt: int, cached: int, output: int) -> None:
        """Replace the worst case by what was used; once."""
        actual = {
            Dimension.RPM: 1,
            Dimension.TPM: prompt + output,
            Dimension.UNCACHED_TPM: prompt - cached,
        }
        self._book.settle(self._clock(), request_id, actual)

    def headers(self, context: TenantContext) -> Headers:
        """`x-ratelimit-*` for the dimensions that are limited; the tightest of tenant and key."""
        headers: Headers = []
        now = self._clock()
        for dimension, name in HEADER_NAMES.items():
            lefts = [
                self._book.left(now, subject, {dimension: limit.value})[dimension]
                for subject, limited, limit in self._limits(_Key(context))
                if limited is dimension
            ]
            if lefts:
                left = min(lefts, key=lambda one: one.remaining)
                headers += [
                    (b"x-ratelimit-limit-" + name, b"%d" % left.limit),
                    (b"x-ratelimit-remaining-" + name, b"%d" % left.remaining),
                    (b"x-ratelimit-reset-" + name, duration(left.reset_s)),
                ]
        return headers

    def left(self, tenant_id: str, limits: dict[Dimension, int]) -> dict[Dimension, int]:
        """What the tenant may still take of each of `limits`."""
        left = self._book.left(self._clock(), _tenant_subject(tenant_id), limits)
        return {dimension: one.remaining for dimension, one in left.items()}


def _tenant_subject(tenant_id: str) -> str:
    return f"tenant:{tenant_id}"


class _Key:
    """A context as a cache key: one key at one revision has one set of limits."""

    __slots__ = ("context", "identity")

    def __init__(self, context: TenantContext) -> None:
        self.context = context
        self.identity = (context.key_id, context.revision)

    def __hash__(self) -> int:
        return hash(self.identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.identity == other.identity


def _limits(cached_by: _Key) -> tuple[tuple[str, Dimension, EffectiveLimit], ...]:
    """Every counted limit with whose it is: a key's own counts for the key, beside its tenant's."""
    context = cached_by.context
    found = []
    tenant = _tenant_subject(str(context.tenant_id))
    key = f"key:{context.key_id}"
    for dimension, name in LIMIT_FIELDS.items():
        shared = _field(context.limits, name)
        if shared is not None:
            found.append((tenant, dimension, shared))
        own = _field(context.key_limits, name)
        if own is not None and own.level == "key":
            found.append((key, dimension, own))
    return tuple(found)


def _field(limits: EffectiveLimits, name: str) -> EffectiveLimit | None:
    value: EffectiveLimit | None = getattr(limits, name)
    return value


def _limit_exceeded(refusal: Refusal, context: TenantContext) -> LimitExceeded:
    name = LIMIT_FIELDS[refusal.dimension]
    whose = f"tenant {context.tenant_slug}"
    if refusal.level == "key":
        whose = f"key {context.key_id} of {whose}"
    queue = refusal.dimension is Dimension.QUEUED
    unit = " waiting requests" if queue else " per minute"
    message = (
        f"Limit reached for {whose}: {name} is {refusal.limit}{unit}, set by the {refusal.level};"
        f" {refusal.remaining} left."
    )
    kind = QueueFull if queue else LimitExceeded
    return kind(message, dimension=name, level=refusal.level, retry_after_s=refusal.retry_after_s)


def duration(seconds: float) -> bytes:
    """A Go-style duration, as OpenAI's reset headers have it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(seconds, 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{text}s".encode() if minutes else f"{text}s".encode()
