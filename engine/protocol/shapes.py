"""OpenAI's response bodies as plain dictionaries, with every member its schema requires.

Pure: whoever answers brings id, time and text. `finish_reason` is `stop` or `length`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

JsonObject = dict[str, Any]


class Omit(Enum):
    """Says that a member is left out, which is not the same as null."""

    OMIT = "omit"


OMIT: Final = Omit.OMIT
UsageMember = JsonObject | None | Omit
"""Usage of a chunk: an object, null (usage was asked for and comes last), or left out."""


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of one response share: `id`, `created` (Unix seconds), `model`."""

    id: str
    created: int
    model: str


def usage(prompt_tokens: int, output_tokens: int, cached_tokens: int | None) -> JsonObject:
    """Token counts; cached tokens are a part of the prompt's, and None means unknown, not 0."""
    counts: JsonObject = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    if cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return counts


def chat_completion(
    head: Head,
    text: str,
    finish_reason: str,
    *,
    usage: JsonObject,
) -> JsonObject:
    """A whole chat answer of one choice."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason,
    }
    return _body(head, "chat.completion", [choice], usage)


def chat_chunk(
    head: Head,
    text: str | None = None,
    finish_reason: str | None = None,
    *,
    role: bool = False,
    usage: UsageMember = OMIT,
) -> JsonObject:
    """One streamed piece of a chat answer; the first carries the role and an empty text."""
    delta: JsonObject = {"role": "assistant", "content": "", "refusal": None} if role else {}
    if text is not None:
        delta["content"] = text
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _body(head, "chat.completion.chunk", [choice], usage)


def chat_usage_chunk(head: Head, usage: JsonObject) -> JsonObject:
    """The extra last chunk of a chat stream whose client asked for usage: no choices."""
    return _body(head, "chat.completion.chunk", [], usage)


def completion(head: Head, text: str, finish_reason: str, *, usage: JsonObject) -> JsonObject:
    """A whole text completion of one choice."""
    return _body(head, "text_completion", [_text_choice(text, finish_reason)], usage)


def completion_chunk(
    head: Head,
    text: str = "",
    finish_reason: str | None = None,
    *,
    usage: UsageMember = OMIT,
) -> JsonObject:
    """One streamed piece of a text completion."""
    return _body(head, "text_completion", [_text_choice(text, finish_reason)], usage)


def completion_usage_chunk(head: Head, usage: JsonObject) -> JsonObject:
    """The extra last chunk of a completion stream whose client asked for usage: no choices."""
    return _body(head, "text_completion", [], usage)


def model_card(model_id: str, created: int, owned_by: str = "evenhand") -> JsonObject:
    """One entry of `GET /v1/models`."""
    return {"id": model_id, "object": "model", "created": created, "owned_by": owned_by}


def model_list(cards: Sequence[JsonObject]) -> JsonObject:
    """The body of `GET /v1/models`."""
    return {"object": "list", "data": list(cards)}


def _text_choice(text: str, finish_reason: str | None) -> JsonObject:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _body(head: Head, kind: str, choices: list[JsonObject], usage: UsageMember) -> JsonObject:
    body: JsonObject = {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }
    if usage is not OMIT:
        body["usage"] = usage
    return body
