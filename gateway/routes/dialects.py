"""How the two inference routes word their answers, over the shapes of `engine.protocol`."""

from typing import Protocol

from engine.protocol import shapes
from engine.protocol.shapes import Head, JsonObject, UsageMember


class Dialect(Protocol):
    """One route's answers; `usage` of a chunk is null or left out, never a number."""

    id_prefix: str

    def opening(self, head: Head, usage: UsageMember) -> JsonObject | None:
        """What a stream starts with, if anything."""
        ...

    def deltas(
        self, head: Head, text: str, finish_reason: str | None, usage: UsageMember
    ) -> list[JsonObject]:
        """The chunks for one engine event; none for text that is held back."""

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """The chunk of no choices that carries the usage."""

    def whole(self, head: Head, text: str, finish_reason: str, usage: JsonObject) -> JsonObject:
        """The answer in one piece."""


class ChatDialect:
    """`/v1/chat/completions`: role first, then content, then an empty delta that ends it."""

    id_prefix = "chatcmpl-"

    def opening(self, head: Head, usage: UsageMember) -> JsonObject | None:
        """The role."""
        return shapes.chat_chunk(head, role=True, usage=usage)

    def deltas(
        self, head: Head, text: str, finish_reason: str | None, usage: UsageMember
    ) -> list[JsonObject]:
        """Content, and the end apart from it."""
        chunks = []
        if text:
            chunks.append(shapes.chat_chunk(head, text, usage=usage))
        if finish_reason is not None:
            chunks.append(shapes.chat_chunk(head, finish_reason=finish_reason, usage=usage))
        return chunks

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.chat_usage_chunk(head, usage)

    def whole(self, head: Head, text: str, finish_reason: str, usage: JsonObject) -> JsonObject:
        """One message."""
        return shapes.chat_completion(head, text, finish_reason, usage=usage)


class CompletionDialect:
    """`/v1/completions`."""

    id_prefix = "cmpl-"

    def opening(self, head: Head, usage: UsageMember) -> JsonObject | None:
        """Nothing: a completion has no role."""
        del head, usage
        return None

    def deltas(
        self, head: Head, text: str, finish_reason: str | None, usage: UsageMember
    ) -> list[JsonObject]:
        """Text, with the end in the same chunk."""
        if not text and finish_reason is None:
            return []
        return [shapes.completion_chunk(head, text, finish_reason, usage=usage)]

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.completion_usage_chunk(head, usage)

    def whole(self, head: Head, text: str, finish_reason: str, usage: JsonObject) -> JsonObject:
        """One text."""
        return shapes.completion(head, text, finish_reason, usage=usage)
