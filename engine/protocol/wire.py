"""Read request bodies into immutable requests, closed by one table per route and audience.

A member is acted on, ignored on purpose, accepted only where it changes nothing, or refused by
name: there is no fifth case, so a field added upstream can never pass unreviewed.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from engine.protocol.checks import (
    Field,
    Table,
    array,
    boolean,
    choice,
    expect,
    integer,
    invalid_type,
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
from engine.protocol.namespace import is_namespace
from engine.protocol.requests import (
    CacheChoice,
    ChatRequest,
    CompletionRequest,
    EngineFields,
    Sampling,
    StreamOptions,
    TokenizeRequest,
)

MAX_N: Final = 8
MAX_STOP_STRINGS: Final = 4
MAX_STOP_BYTES: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_CACHE_SCOPE_BYTES: Final = 128
MAX_TOKEN_ID: Final = 2**31 - 1
_MAX_COUNT: Final = 2**31 - 1
_MAX_ITEMS: Final = 2**20


class Audience(Enum):
    """Whose requests a table reads: tenants' clients, or the gateway speaking to an engine."""

    PUBLIC = "public"
    ENGINE = "engine"


def parse_chat(body: dict[str, Any], audience: Audience) -> ChatRequest:
    """`POST /v1/chat/completions`. Raises InvalidRequest naming the first offending field."""
    members = read_object(body, "", _CHAT[audience])
    members["max_tokens"] = _one_output_limit(members)
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
    if ("prompt" in members) == ("messages" in members):
        raise invalid_value("prompt", "give either it or 'messages'")
    prompt = members["prompt"] if "prompt" in members else members["messages"]
    return TokenizeRequest(model=members["model"], prompt=prompt)


# --- from members to values --------------------------------------------------------------------


def _sampling(members: Mapping[str, Any]) -> Sampling:
    return Sampling(
        max_tokens=members.get("max_tokens"),
        temperature=members.get("temperature", 1.0),
        top_p=members.get("top_p", 1.0),
        top_k=max(members.get("top_k", 0), 0),
        seed=members.get("seed"),
        stop=members.get("stop", ()),
        stop_token_ids=members.get("stop_token_ids", ()),
        ignore_eos=members.get("ignore_eos", False),
    )


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


# --- checks of single fields -------------------------------------------------------------------


def _count_of_choices(value: Any, path: str) -> int:
    number_of_choices: int = integer(1, MAX_N)(value, path)
    if number_of_choices != 1:
        raise unsupported(path, "more than one choice")
    return number_of_choices


_STOP_STRING: Final = text(MAX_STOP_BYTES, empty=False)
_STOP_STRINGS: Final = array(_STOP_STRING, MAX_STOP_STRINGS)
_TOKEN_ID: Final = integer(0, MAX_TOKEN_ID)
_EACH_TOKEN_ID: Final = array(_TOKEN_ID, _MAX_ITEMS, empty=False)


def _stop(value: Any, path: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_STOP_STRING(value, path),)
    if not isinstance(value, list):
        raise invalid_type(path, "a string or an array of strings", value)
    stop: tuple[str, ...] = _STOP_STRINGS(value, path)
    return stop


def _token_ids(value: list[Any], path: str) -> tuple[int, ...]:
    """Whole prompts pass at C speed; the slow check is for naming the item that is wrong."""
    if set(map(type, value)) == {int} and min(value) >= 0 and max(value) <= MAX_TOKEN_ID:
        return tuple(value)
    token_ids: tuple[int, ...] = _EACH_TOKEN_ID(value, path)
    return token_ids


def _prompt(value: Any, path: str) -> str | tuple[int, ...]:
    """One prompt: text, token ids, or a list of just one of these."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid_type(path, "a string or an array of token ids", value)
    if not value or not isinstance(value[0], str | list):
        return _token_ids(value, path)
    if len(value) > 1:
        raise unsupported(path, "more than one prompt")
    if isinstance(value[0], str):
        return value[0]
    return _token_ids(value[0], f"{path}[0]")


def _cache_salt(value: Any, path: str) -> str:
    """The salt is a secret: a refusal says its form and repeats nothing of it."""
    if not is_namespace(value):
        raise invalid_value(path, "it must be a cache namespace of 43 base64url characters")
    return str(value)


def _metadata(value: Any, path: str) -> dict[str, Any]:
    members = json_object(value, path)
    if len(members) > 16:
        raise invalid_value(path, "it must have at most 16 pairs")
    for pair_value in members.values():
        expect(pair_value, path, str, "an object of strings")
    return members


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


_ACTED_ON: Final[Table] = {
    "model": Field(text(256, empty=False), required=True),
    "max_tokens": Field(integer(1, _MAX_COUNT)),
    "temperature": Field(number(0, 2)),
    "top_p": Field(number(0, 1, above_low=True)),
    "seed": Field(integer(-(2**63), 2**63 - 1)),
    "n": Field(_count_of_choices),
    "stop": Field(_stop),
    "stream": Field(boolean),
    "cache": Field(choice("on", "off")),
}
_IGNORED: Final[Table] = {
    "user": Field(text()),
    "metadata": Field(_metadata),
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
_DEFAULT_ONLY: Final[Table] = {
    "frequency_penalty": Field(only(0)),
    "presence_penalty": Field(only(0)),
    "logit_bias": Field(only({})),
}
_CHAT_ONLY: Final[Table] = {
    "messages": Field(array(read_message, _MAX_ITEMS, empty=False), required=True),
    "max_completion_tokens": Field(integer(1, _MAX_COUNT)),
    "logprobs": Field(only(False)),
    "top_logprobs": Field(only(0)),
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
    "prompt": Field(_prompt, required=True),
    "best_of": Field(only(1)),
    "echo": Field(only(False)),
    "logprobs": Field(only()),
    "suffix": Field(only("")),
}
_PUBLIC_ONLY: Final[Table] = {
    "cache_scope": Field(text(MAX_CACHE_SCOPE_BYTES, empty=False)),
    "stream_options": Field(_public_stream_options),
}
_ENGINE_ONLY: Final[Table] = {
    "cache_salt": Field(_cache_salt, required=True),
    "cache_owner": Field(visible_ascii(128)),
    "cache_weight": Field(integer(1, _MAX_COUNT)),
    "request_id": Field(visible_ascii(128)),
    "stream_options": Field(_engine_stream_options),
    "top_k": Field(integer(-1, _MAX_COUNT)),
    "stop_token_ids": Field(array(_TOKEN_ID, MAX_STOP_TOKEN_IDS)),
    "ignore_eos": Field(boolean),
}
_ENGINE_DEFAULT_ONLY: Final[Table] = {
    "cache_public": Field(only()),
    "priority": Field(only(0)),
    "min_p": Field(only(0)),
    "min_tokens": Field(only(0)),
    "repetition_penalty": Field(only(1)),
    "length_penalty": Field(only(1)),
    "use_beam_search": Field(only(False)),
    "bad_words": Field(only([])),
    "allowed_token_ids": Field(only()),
    "prompt_logprobs": Field(only()),
    "truncate_prompt_tokens": Field(only()),
    "include_stop_str_in_output": Field(only(False)),
    "skip_special_tokens": Field(only(True)),
    "spaces_between_special_tokens": Field(only(True)),
    "return_token_ids": Field(only(False)),
    "return_tokens_as_token_ids": Field(only(False)),
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
_ENGINE_COMPLETION_DEFAULT_ONLY: Final[Table] = {
    "add_special_tokens": Field(only(True)),
    "prompt_embeds": Field(only()),
    "response_format": Field(only({"type": "text"})),
}

_TOKENIZE: Final[Table] = {
    "model": _ACTED_ON["model"],
    "prompt": Field(text()),
    "messages": Field(array(read_message, _MAX_ITEMS, empty=False)),
    "add_generation_prompt": Field(only(True)),
    "add_special_tokens": Field(only(True)),
}

_SHARED: Final[Table] = {**_ACTED_ON, **_IGNORED, **_DEFAULT_ONLY}
_ENGINE: Final[Table] = {**_ENGINE_ONLY, **_ENGINE_DEFAULT_ONLY}
_CHAT: Final[Mapping[Audience, Table]] = {
    Audience.PUBLIC: {**_SHARED, **_CHAT_ONLY, **_PUBLIC_ONLY},
    Audience.ENGINE: {**_SHARED, **_CHAT_ONLY, **_ENGINE, **_ENGINE_CHAT_DEFAULT_ONLY},
}
_COMPLETION: Final[Mapping[Audience, Table]] = {
    Audience.PUBLIC: {**_SHARED, **_COMPLETION_ONLY, **_PUBLIC_ONLY},
    Audience.ENGINE: {**_SHARED, **_COMPLETION_ONLY, **_ENGINE, **_ENGINE_COMPLETION_DEFAULT_ONLY},
}
