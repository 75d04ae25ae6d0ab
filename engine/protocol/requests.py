"""Parsed requests as immutable values, shared by the gateway and the engine's own server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the client wants tokens chosen and told. None means the client left it to the server.

    Choice: `n` answers to one prompt; `logit_bias` is pairs of token id and bias, by id;
    `top_k` 0, `min_p` 0 and `repetition_penalty` 1 are off. End: an answer shows neither its stop
    string nor its stop token unless `include_stop_str_in_output`, and cannot end before
    `min_tokens`. Telling: `logprobs` None is none, 0 the chosen token's own, k also the k most
    likely; `prompt_logprobs` likewise for the prompt; `echo` puts the prompt's text (and, with
    `logprobs`, its tokens) before the answer; `return_token_ids` adds the ids themselves;
    `return_tokens_as_token_ids` writes a token of logprobs as `token_id:5`.
    """

    max_tokens: int | None = None
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False


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
class Chat:
    """A prompt that the model's chat template writes."""

    messages: tuple[Message, ...]


Prompt = str | tuple[int, ...] | Chat
"""Text, token ids, or a conversation."""


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
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class PinRequest:
    """`POST /prefix/pin`: keep a prompt's cached blocks in a namespace, or let them go."""

    model: str
    cache_salt: str
    prompt: Prompt
    pinned: bool


@dataclass(frozen=True, slots=True)
class EraseRequest:
    """`POST /cache/erase`: forget everything cached in a namespace."""

    cache_salt: str
