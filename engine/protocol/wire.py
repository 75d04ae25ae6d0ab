"""Read request bodies into immutable requests, closed by one table per route and audience.

A member is acted on, ignored on purpose, accepted only where it changes nothing, or refused by
name: there is no fifth case, so a field added upstream can never pass unreviewed.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from engine.protocol import fields
from engine.protocol.checks import (
    Field,
    Table,
    array,
    boolean,
    choice,
    integer,
    invalid_value,
    json_object,
    number,
    only,
    read_object,
    text,
    unsupported,
    visible_ascii,
)
from engine.protocol.messages import read_message
from engine.protocol.requests import (
    CacheChoice,
    Chat,
    ChatRequest,
    CompletionRequest,
    EngineFields,
    EraseRequest,
    PinRequest,
    Prompt,
    Sampling,
    StreamOptions,
    TokenizeRequest,
)

MAX_N: Final = 8
MAX_LOGPROBS: Final = 20
MAX_COMPLETION_LOGPROBS: Final = 5
MAX_STOP_TOKEN_IDS: Final = 128
MAX_CACHE_SCOPE_BYTES: Final = 128
_MAX_COUNT: Final = 2**31 - 1


class Audience(Enum):
    """Whose requests a table reads: tenants' clients, or the gateway speaking to an engine."""

    PUBLIC = "public"
    ENGINE = "engine"


def parse_chat(body: dict[str, Any], audience: Audience) -> ChatRequest:
    """`POST /v1/chat/completions`. Raises InvalidRequest naming the first offending field."""
    members = read_object(body, "", _CHAT[audience])
    members["max_tokens"] = _one_output_limit(members)
    members["logprobs"] = _chat_logprobs(members)
    return ChatRequest(
        model=members["model"],
        messages=members["messages"],
        sampling=_sampling(members),
        delivery=_delivery(members),
        cache=_cache(members),
        engine=_engine_fields(members, audience),
    )


def parse_completion(body: dict[str, Any], audience: Audience) -> CompletionRequest:
    """`POST /v1/completions`. Raises InvalidRequest naming the first offending field."""
    members = read_object(body, "", _COMPLETION[audience])
    num_choices = members.get("n", 1)
    if members.get("best_of", num_choices) != num_choices:
        raise unsupported("best_of", "another number than 'n'")
    return CompletionRequest(
        model=members["model"],
        prompt=members["prompt"],
        sampling=_sampling(members),
        delivery=_delivery(members),
        cache=_cache(members),
        engine=_engine_fields(members, audience),
    )


def parse_tokenize(body: dict[str, Any]) -> TokenizeRequest:
    """`POST /tokenize`, of engines only: just one of `prompt` and `messages`."""
    members = read_object(body, "", _TOKENIZE)
    return TokenizeRequest(model=members["model"], prompt=_one_prompt(members))


def parse_pin(body: dict[str, Any]) -> PinRequest:
    """`POST /prefix/pin`, of engines only: just one of `prompt` and `messages`."""
    members = read_object(body, "", _PIN)
    return PinRequest(
        model=members["model"],
        cache_salt=members["cache_salt"],
        prompt=_one_prompt(members),
        pinned=members["pinned"],
    )


def parse_erase(body: dict[str, Any]) -> EraseRequest:
    """`POST /cache/erase`, of engines only."""
    return EraseRequest(read_object(body, "", _ERASE)["cache_salt"])


# --- from members to values --------------------------------------------------------------------

_AS_GIVEN: Final = (
    *("max_tokens", "n", "temperature", "top_p", "min_p", "seed", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words"),
    *("min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
    *("skip_special_tokens", "logprobs", "prompt_logprobs", "echo", "return_token_ids"),
    "return_tokens_as_token_ids",
)


def _sampling(members: Mapping[str, Any]) -> Sampling:
    sampling = Sampling(
        top_k=max(members.get("top_k", 0), 0),
        **{name: members[name] for name in _AS_GIVEN if name in members},
    )
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise invalid_value("min_tokens", "it must not be above 'max_tokens'")
    if sampling.prompt_logprobs is not None and members.get("stream", False):
        raise invalid_value("prompt_logprobs", "it is only allowed when 'stream' is false")
    return sampling


def _chat_logprobs(members: Mapping[str, Any]) -> int | None:
    """Chat says with a boolean what completions say with a number."""
    num_top: int = members.get("top_logprobs", 0)
    if members.get("logprobs", False):
        return num_top
    if num_top:
        raise invalid_value("top_logprobs", "it is only allowed when 'logprobs' is true")
    return None


def _one_prompt(members: Mapping[str, Any]) -> Prompt:
    if ("prompt" in members) == ("messages" in members):
        raise invalid_value("prompt", "give either it or 'messages'")
    prompt: Prompt = members["prompt"] if "prompt" in members else Chat(members["messages"])
    return prompt


def _delivery(members: Mapping[str, Any]) -> StreamOptions:
    stream = members.get("stream", False)
    options = members.get("stream_options")
    if options is not None and not stream:
        raise invalid_value("stream_options", "it is only allowed when 'stream' is true")
    options = options or {}
    return StreamOptions(
        stream=stream,
        include_usage=options.get("include_usage", False),
        continuous_usage_stats=options.get("continuous_usage_stats", False),
    )


def _cache(members: Mapping[str, Any]) -> CacheChoice:
    return CacheChoice(
        scope=members.get("cache_scope"),
        enabled=members.get("cache", "on") == "on",
        affinity_key=members.get("prompt_cache_key"),
    )


def _engine_fields(members: Mapping[str, Any], audience: Audience) -> EngineFields | None:
    if audience is Audience.PUBLIC:
        return None
    return EngineFields(
        cache_salt=members["cache_salt"],
        cache_owner=members.get("cache_owner"),
        cache_weight=members.get("cache_weight"),
        request_id=members.get("request_id"),
    )


def _one_output_limit(members: Mapping[str, Any]) -> int | None:
    """`max_completion_tokens` and its older name say the same thing, so they may not differ."""
    older: int | None = members.get("max_tokens")
    newer: int | None = members.get("max_completion_tokens")
    if older is not None and newer is not None and older != newer:
        raise invalid_value("max_completion_tokens", "it contradicts 'max_tokens'")
    return older if newer is None else newer


# --- tables ------------------------------------------------------------------------------------

_PUBLIC_STREAM_OPTIONS: Final[Table] = {
    "include_usage": Field(boolean),
    "include_obfuscation": Field(boolean),
}
_ENGINE_STREAM_OPTIONS: Final[Table] = {
    **_PUBLIC_STREAM_OPTIONS,
    "continuous_usage_stats": Field(boolean),
}


def _public_stream_options(value: Any, path: str) -> dict[str, Any]:
    return read_object(value, path, _PUBLIC_STREAM_OPTIONS)


def _engine_stream_options(value: Any, path: str) -> dict[str, Any]:
    return read_object(value, path, _ENGINE_STREAM_OPTIONS)


_MESSAGES: Final = array(read_message, fields.MAX_ITEMS, empty=False)
_ACTED_ON: Final[Table] = {
    "model": Field(text(256, empty=False), required=True),
    "max_tokens": Field(integer(1, _MAX_COUNT)),
    "temperature": Field(number(0, 2)),
    "top_p": Field(number(0, 1, above_low=True)),
    "seed": Field(integer(-(2**63), 2**63 - 1)),
    "n": Field(integer(1, MAX_N)),
    "stop": Field(fields.stop),
    "presence_penalty": Field(number(-2, 2)),
    "frequency_penalty": Field(number(-2, 2)),
    "logit_bias": Field(fields.logit_bias),
    "stream": Field(boolean),
    "cache": Field(choice("on", "off")),
}
_IGNORED: Final[Table] = {
    "user": Field(text()),
    "metadata": Field(fields.metadata),
    "store": Field(boolean),
    "prompt_cache_key": Field(text(1024)),
    "prompt_cache_retention": Field(text()),
    "prompt_cache_options": Field(json_object),
    "safety_identifier": Field(text()),
    "service_tier": Field(text()),
    "parallel_tool_calls": Field(boolean),
    "reasoning_effort": Field(text()),
    "verbosity": Field(text()),
}
_CHAT_ONLY: Final[Table] = {
    "messages": Field(_MESSAGES, required=True),
    "max_completion_tokens": Field(integer(1, _MAX_COUNT)),
    "logprobs": Field(boolean),
    "top_logprobs": Field(integer(0, MAX_LOGPROBS)),
    "response_format": Field(only({"type": "text"})),
    "modalities": Field(only(["text"])),
    "tools": Field(only()),
    "tool_choice": Field(only("none")),
    "functions": Field(only()),
    "function_call": Field(only("none")),
    "audio": Field(only()),
    "prediction": Field(only()),
    "moderation": Field(only()),
    "web_search_options": Field(only()),
}
_COMPLETION_ONLY: Final[Table] = {
    "prompt": Field(fields.prompt, required=True),
    "best_of": Field(integer(1, MAX_N)),
    "echo": Field(boolean),
    "logprobs": Field(integer(0, MAX_COMPLETION_LOGPROBS)),
    "suffix": Field(only("")),
}
_PUBLIC_ONLY: Final[Table] = {
    "cache_scope": Field(text(MAX_CACHE_SCOPE_BYTES, empty=False)),
    "stream_options": Field(_public_stream_options),
}
_ENGINE_ONLY: Final[Table] = {
    "cache_salt": Field(fields.cache_salt, required=True),
    "cache_owner": Field(visible_ascii(128)),
    "cache_weight": Field(integer(1, _MAX_COUNT)),
    "request_id": Field(visible_ascii(128)),
    "stream_options": Field(_engine_stream_options),
    "top_k": Field(integer(-1, _MAX_COUNT)),
    "stop_token_ids": Field(array(fields.TOKEN_ID, MAX_STOP_TOKEN_IDS)),
    "ignore_eos": Field(boolean),
    "min_p": Field(number(0, 1)),
    "min_tokens": Field(integer(0, _MAX_COUNT)),
    "repetition_penalty": Field(number(0.01, 2)),  # a float of 32 bits can divide by it
    "bad_words": Field(fields.bad_words),
    "allowed_token_ids": Field(fields.token_ids),
    "prompt_logprobs": Field(integer(0, MAX_LOGPROBS)),
    "include_stop_str_in_output": Field(boolean),
    "skip_special_tokens": Field(boolean),
    "return_token_ids": Field(boolean),
    "return_tokens_as_token_ids": Field(boolean),
}
_ENGINE_DEFAULT_ONLY: Final[Table] = {
    "cache_public": Field(only()),
    "priority": Field(only(0)),
    "length_penalty": Field(only(1)),
    "use_beam_search": Field(only(False)),
    "truncate_prompt_tokens": Field(only()),
    "spaces_between_special_tokens": Field(only(True)),
    "structured_outputs": Field(only()),
    "logits_processors": Field(only()),
    "kv_transfer_params": Field(only()),
    "vllm_xargs": Field(only()),
}
_ENGINE_CHAT_DEFAULT_ONLY: Final[Table] = {
    "add_generation_prompt": Field(only(True)),
    "add_special_tokens": Field(only(False)),
    "continue_final_message": Field(only(False)),
    "chat_template": Field(only()),
    "chat_template_kwargs": Field(only({})),
    "documents": Field(only([])),
    "include_reasoning": Field(only(True)),
    "mm_processor_kwargs": Field(only({})),
}
_ENGINE_COMPLETION_ONLY: Final[Table] = {
    "logprobs": Field(integer(0, MAX_LOGPROBS)),
    "add_special_tokens": Field(only(True)),
    "prompt_embeds": Field(only()),
    "response_format": Field(only({"type": "text"})),
}

_TOKENIZE: Final[Table] = {
    "model": _ACTED_ON["model"],
    "prompt": Field(text()),
    "messages": Field(_MESSAGES),
    "add_generation_prompt": Field(only(True)),
    "add_special_tokens": Field(only(True)),
}
_PIN: Final[Table] = {
    "model": _ACTED_ON["model"],
    "cache_salt": _ENGINE_ONLY["cache_salt"],
    "prompt": Field(fields.prompt),
    "messages": Field(_MESSAGES),
    "pinned": Field(boolean, required=True),
}
_ERASE: Final[Table] = {"cache_salt": _ENGINE_ONLY["cache_salt"]}

_SHARED: Final[Table] = {**_ACTED_ON, **_IGNORED}
_ENGINE: Final[Table] = {**_ENGINE_ONLY, **_ENGINE_DEFAULT_ONLY}
_CHAT: Final[Mapping[Audience, Table]] = {
    Audience.PUBLIC: {**_SHARED, **_CHAT_ONLY, **_PUBLIC_ONLY},
    Audience.ENGINE: {**_SHARED, **_CHAT_ONLY, **_ENGINE, **_ENGINE_CHAT_DEFAULT_ONLY},
}
_COMPLETION: Final[Mapping[Audience, Table]] = {
    Audience.PUBLIC: {**_SHARED, **_COMPLETION_ONLY, **_PUBLIC_ONLY},
    Audience.ENGINE: {**_SHARED, **_COMPLETION_ONLY, **_ENGINE, **_ENGINE_COMPLETION_ONLY},
}
