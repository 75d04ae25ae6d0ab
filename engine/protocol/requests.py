"""Parsed requests as immutable values, shared by the gateway and the engine's own server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the client wants tokens chosen. None means the client left it to the server."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How the answer is delivered. `continuous_usage_stats` exists on the engine API only."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage_stats: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; text content parts are already joined, `developer` is `system`."""

    role: str
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class CacheChoice:
    """What a tenant may say about caching: narrow its namespace, or opt out."""

    scope: str | None = None
    enabled: bool = True
    affinity_key: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFields:
    """What only the gateway may say, to an engine: never parsed from a public request."""

    cache_salt: str
    cache_owner: str | None = None
    cache_weight: int | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """`POST /v1/chat/completions`."""

    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    delivery: StreamOptions
    cache: CacheChoice
    engine: EngineFields | None = None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """`POST /v1/completions` with one prompt, as text or as token ids."""

    model: str
    prompt: str | tuple[int, ...]
    sampling: Sampling
    delivery: StreamOptions
    cache: CacheChoice
    engine: EngineFields | None = None


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """`POST /tokenize`: text, or the messages that the model's template renders."""

    model: str
    prompt: str | tuple[Message, ...]
