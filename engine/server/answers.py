"""The two response dialects, chat and completions, over the shapes that the gateway uses too."""

from typing import Any, Protocol

from engine.protocol import metrics, shapes
from engine.protocol.shapes import OMIT, Head, UsageMember

JsonObject = dict[str, Any]


class Dialect(Protocol):
    """How one route words its answers."""

    id_prefix: str
    operation: str
    prompt_param: str

    def opening(self, head: Head, usage: UsageMember) -> JsonObject:
        """The first event, sent when the request is admitted."""
        ...

    def delta(
        self, head: Head, text: str, finish_reason: str | None, usage: UsageMember
    ) -> JsonObject:
        """One event of text."""
        ...

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """The event without choices that carries the usage asked for."""
        ...

    def whole(self, head: Head, text: str, finish_reason: str, usage: JsonObject) -> JsonObject:
        """The answer that is not streamed."""
        ...


class ChatDialect:
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl-"
    operation = metrics.OPERATION_CHAT
    prompt_param = "messages"

    def opening(self, head: Head, usage: UsageMember) -> JsonObject:
        """The role, and no text yet."""
        return shapes.chat_chunk(head, role=True, usage=usage)

    def delta(
        self, head: Head, text: str, finish_reason: str | None, usage: UsageMember
    ) -> JsonObject:
        """Text to append to the message."""
        return shapes.chat_chunk(head, text, finish_reason, usage=usage)

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.chat_usage_chunk(head, usage)

    def whole(self, head: Head, text: str, finish_reason: str, usage: JsonObject) -> JsonObject:
        """One assistant message."""
        return shapes.chat_completion(head, [shapes.chat_choice(text, finish_reason)], usage=usage)


class CompletionDialect:
    """`/v1/completions`."""

    id_prefix = "cmpl-"
    operation = metrics.OPERATION_COMPLETION
    prompt_param = "prompt"

    def opening(self, head: Head, usage: UsageMember = OMIT) -> JsonObject:
        """An empty text."""
        return shapes.completion_chunk(head, usage=usage)

    def delta(
        self, head: Head, text: str, finish_reason: str | None, usage: UsageMember
    ) -> JsonObject:
        """Text to append."""
        return shapes.completion_chunk(head, text, finish_reason, usage=usage)

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.completion_usage_chunk(head, usage)

    def whole(self, head: Head, text: str, finish_reason: str, usage: JsonObject) -> JsonObject:
        """One text choice."""
        return shapes.completion(head, [shapes.text_choice(text, finish_reason)], usage=usage)
