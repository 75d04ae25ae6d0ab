"""OpenAI's response bodies as plain dictionaries, with every member its schema requires.

Pure: whoever answers brings id, time, text and tokens. `finish_reason` is `stop` or `length`.
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


# --- chat --------------------------------------------------------------------------------------


def chat_choice(
    text: str, finish_reason: str, *, index: int = 0, logprobs: JsonObject | None = None
) -> JsonObject:
    """One whole answer of a chat."""
    message = {"role": "assistant", "content": text, "refusal": None}
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }


def chat_completion(head: Head, choices: Sequence[JsonObject], *, usage: JsonObject) -> JsonObject:
    """A whole chat answer; `choices` are `chat_choice`s, by index."""
    return _body(head, "chat.completion", list(choices), usage)


def chat_chunk(
    head: Head,
    text: str | None = None,
    finish_reason: str | None = None,
    *,
    role: bool = False,
    index: int = 0,
    logprobs: JsonObject | None = None,
    usage: UsageMember = OMIT,
) -> JsonObject:
    """One streamed piece of one choice; a choice's first carries the role and an empty text."""
    delta: JsonObject = {"role": "assistant", "content": "", "refusal": None} if role else {}
    if text is not None:
        delta["content"] = text
    choice = {
        "index": index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    return _body(head, "chat.completion.chunk", [choice], usage)


def chat_usage_chunk(head: Head, usage: JsonObject) -> JsonObject:
    """The extra last chunk of a chat stream whose client asked for usage: no choices."""
    return _body(head, "chat.completion.chunk", [], usage)


# --- completions -------------------------------------------------------------------------------


def text_choice(
    text: str, finish_reason: str | None, *, index: int = 0, logprobs: JsonObject | None = None
) -> JsonObject:
    """One answer of a completion, or a streamed piece of it."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def completion(head: Head, choices: Sequence[JsonObject], *, usage: JsonObject) -> JsonObject:
    """A whole text completion; `choices` are `text_choice`s, by index."""
    return _body(head, "text_completion", list(choices), usage)


def completion_chunk(
    head: Head,
    text: str = "",
    finish_reason: str | None = None,
    *,
    index: int = 0,
    logprobs: JsonObject | None = None,
    usage: UsageMember = OMIT,
) -> JsonObject:
    """One streamed piece of one choice."""
    choice = text_choice(text, finish_reason, index=index, logprobs=logprobs)
    return _body(head, "text_completion", [choice], usage)


def completion_usage_chunk(head: Head, usage: JsonObject) -> JsonObject:
    """The extra last chunk of a completion stream whose client asked for usage: no choices."""
    return _body(head, "text_completion", [], usage)


# --- log-probabilities -------------------------------------------------------------------------

MIN_LOGPROB: Final = -9999.0
"""What stands for minus infinity, which JSON cannot say; as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token as its text, its bytes and its natural log-probability.

    `data` are the token's own bytes: characters split between tokens are whole only in their sum.
    `logprob` None is not known: the first token of a prompt. `top` are the most likely tokens in
    its place, most likely first. `offset` is where its text begins in its choice's, in characters.
    """

    token: str
    data: bytes
    logprob: float | None
    top: "tuple[TokenLogprob, ...]" = ()
    offset: int = 0


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> JsonObject:
    """The `logprobs` of a chat choice or chunk."""
    content = [
        {**_chat_token(token), "top_logprobs": [_chat_token(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
    """The `logprobs` of a completion choice or chunk: parallel lists, one item per token.

    `top_logprobs` maps text to log-probability for the `num_top` most likely tokens and the chosen
    one (so it may have one more); of tokens with the same text the likelier counts. It is null
    where the log-probability is, and everywhere when `num_top` is 0.
    """
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [
            None if token.logprob is None else _finite(token.logprob) for token in tokens
        ],
        "top_logprobs": [_by_text(token) for token in tokens] if num_top else None,
        "text_offset": [token.offset for token in tokens],
    }


def _chat_token(token: TokenLogprob) -> JsonObject:
    logprob = MIN_LOGPROB if token.logprob is None else _finite(token.logprob)
    return {"token": token.token, "logprob": logprob, "bytes": list(token.data)}


def _by_text(token: TokenLogprob) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    by_text: dict[str, float] = {}
    for other in (*token.top, token):
        if other.logprob is not None:
            by_text.setdefault(other.token, _finite(other.logprob))
    return by_text


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)


# --- models ------------------------------------------------------------------------------------


def model_card(model_id: str, created: int, owned_by: str = "evenhand") -> JsonObject:
    """One entry of `GET /v1/models`."""
    return {"id": model_id, "object": "model", "created": created, "owned_by": owned_by}


def model_list(cards: Sequence[JsonObject]) -> JsonObject:
    """The body of `GET /v1/models`."""
    return {"object": "list", "data": list(cards)}


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
