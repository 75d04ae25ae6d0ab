"""The two response dialects, chat and completions, over the shapes that the gateway uses too."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.protocol import metrics, shapes
from engine.protocol.shapes import Head, TokenLogprob, UsageMember

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One choice, or a streamed piece of it. `extras` are vLLM's own members of a choice."""

    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: JsonObject | None = None
    extras: JsonObject = field(default_factory=dict)


class Dialect(Protocol):
    """How one route words its answers."""

    id_prefix: str
    operation: str
    prompt_param: str
    prompt_in_choices: bool
    """Whether vLLM's members about the prompt stand in each choice, or beside them."""

    def logprobs(self, tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
        """The `logprobs` member for these tokens."""
        ...

    def opening(self, head: Head, index: int, usage: UsageMember) -> JsonObject:
        """A choice's first event, sent when the request is admitted."""
        ...

    def delta(self, head: Head, part: Part, usage: UsageMember) -> JsonObject:
        """One event of a choice's text."""
        ...

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """The event without choices that carries the usage asked for."""
        ...

    def whole(self, head: Head, parts: Sequence[Part], usage: JsonObject) -> JsonObject:
        """The answer that is not streamed; each part is a whole choice."""
        ...


class ChatDialect:
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl-"
    operation = metrics.OPERATION_CHAT
    prompt_param = "messages"
    prompt_in_choices = False

    def logprobs(self, tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
        """A list of objects; each token brings its own `top`."""
        del num_top
        return shapes.chat_logprobs(tokens)

    def opening(self, head: Head, index: int, usage: UsageMember) -> JsonObject:
        """The role, and no text yet."""
        return shapes.chat_chunk(head, role=True, index=index, usage=usage)

    def delta(self, head: Head, part: Part, usage: UsageMember) -> JsonObject:
        """Text to append to the message."""
        chunk = shapes.chat_chunk(
            head,
            part.text,
            part.finish_reason,
            index=part.index,
            logprobs=part.logprobs,
            usage=usage,
        )
        chunk["choices"][0].update(part.extras)
        return chunk

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.chat_usage_chunk(head, usage)

    def whole(self, head: Head, parts: Sequence[Part], usage: JsonObject) -> JsonObject:
        """One assistant message per choice."""
        choices = [
            shapes.chat_choice(
                part.text, str(part.finish_reason), index=part.index, logprobs=part.logprobs
            )
            | part.extras
            for part in parts
        ]
        return shapes.chat_completion(head, choices, usage=usage)


class CompletionDialect:
    """`/v1/completions`."""

    id_prefix = "cmpl-"
    operation = metrics.OPERATION_COMPLETION
    prompt_param = "prompt"
    prompt_in_choices = True

    def logprobs(self, tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
        """Parallel lists."""
        return shapes.completion_logprobs(tokens, num_top)

    def opening(self, head: Head, index: int, usage: UsageMember) -> JsonObject:
        """An empty text."""
        return shapes.completion_chunk(head, index=index, usage=usage)

    def delta(self, head: Head, part: Part, usage: UsageMember) -> JsonObject:
        """Text to append."""
        chunk = shapes.completion_chunk(
            head,
            part.text,
            part.finish_reason,
            index=part.index,
            logprobs=part.logprobs,
            usage=usage,
        )
        chunk["choices"][0].update(part.extras)
        return chunk

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.completion_usage_chunk(head, usage)

    def whole(self, head: Head, parts: Sequence[Part], usage: JsonObject) -> JsonObject:
        """One text per choice."""
        choices = [
            shapes.text_choice(
                part.text, part.finish_reason, index=part.index, logprobs=part.logprobs
            )
            | part.extras
            for part in parts
        ]
        return shapes.completion(head, choices, usage=usage)
