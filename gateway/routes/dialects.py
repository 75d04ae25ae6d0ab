"""How the two inference routes word their answers, over the shapes of `engine.protocol`."""

from collections.abc import Sequence
from typing import Protocol

from engine.protocol import shapes
from engine.protocol.shapes import Head, JsonObject, TokenLogprob, UsageMember


class Dialect(Protocol):
    """One route's answers; `usage` of a chunk is null or left out, never a number."""

    id_prefix: str

    def opening(self, head: Head, index: int, usage: UsageMember) -> JsonObject | None:
        """What the stream of a choice starts with, if anything."""
        ...

    def deltas(
        self,
        head: Head,
        index: int,
        text: str,
        finish_reason: str | None,
        *,
        logprobs: JsonObject | None,
        usage: UsageMember,
    ) -> list[JsonObject]:
        """The chunks for one engine event; none for text that is held back."""
        ...

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """The chunk of no choices that carries the usage."""
        ...

    def choice(
        self, index: int, text: str, finish_reason: str, logprobs: JsonObject | None
    ) -> JsonObject:
        """One choice in one piece."""
        ...

    def whole(self, head: Head, choices: Sequence[JsonObject], usage: JsonObject) -> JsonObject:
        """The answer in one piece, of choices by index."""
        ...

    def logprobs(self, tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
        """The log-probabilities of a choice or of a piece of one."""
        ...


class ChatDialect:
    """`/v1/chat/completions`: role first, then content, then an empty delta that ends a choice."""

    id_prefix = "chatcmpl-"

    def opening(self, head: Head, index: int, usage: UsageMember) -> JsonObject | None:
        """The role."""
        return shapes.chat_chunk(head, role=True, index=index, usage=usage)

    def deltas(
        self,
        head: Head,
        index: int,
        text: str,
        finish_reason: str | None,
        *,
        logprobs: JsonObject | None,
        usage: UsageMember,
    ) -> list[JsonObject]:
        """Content, and the end apart from it."""
        chunks = []
        if text or logprobs is not None:
            chunks.append(
                shapes.chat_chunk(head, text, index=index, logprobs=logprobs, usage=usage)
            )
        if finish_reason is not None:
            chunks.append(
                shapes.chat_chunk(head, finish_reason=finish_reason, index=index, usage=usage)
            )
        return chunks

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.chat_usage_chunk(head, usage)

    def choice(
        self, index: int, text: str, finish_reason: str, logprobs: JsonObject | None
    ) -> JsonObject:
        """One message."""
        return shapes.chat_choice(text, finish_reason, index=index, logprobs=logprobs)

    def whole(self, head: Head, choices: Sequence[JsonObject], usage: JsonObject) -> JsonObject:
        """All messages."""
        return shapes.chat_completion(head, choices, usage=usage)

    def logprobs(self, tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
        """Token by token; each brings its likeliest ones."""
        del num_top
        return shapes.chat_logprobs(tokens)


class CompletionDialect:
    """`/v1/completions`."""

    id_prefix = "cmpl-"

    def opening(self, head: Head, index: int, usage: UsageMember) -> JsonObject | None:
        """Nothing: a completion has no role."""
        del head, index, usage
        return None

    def deltas(
        self,
        head: Head,
        index: int,
        text: str,
        finish_reason: str | None,
        *,
        logprobs: JsonObject | None,
        usage: UsageMember,
    ) -> list[JsonObject]:
        """Text, with the end in the same chunk."""
        if not text and finish_reason is None and logprobs is None:
            return []
        return [
            shapes.completion_chunk(
                head, text, finish_reason, index=index, logprobs=logprobs, usage=usage
            )
        ]

    def closing(self, head: Head, usage: JsonObject) -> JsonObject:
        """Usage alone."""
        return shapes.completion_usage_chunk(head, usage)

    def choice(
        self, index: int, text: str, finish_reason: str, logprobs: JsonObject | None
    ) -> JsonObject:
        """One text."""
        return shapes.text_choice(text, finish_reason, index=index, logprobs=logprobs)

    def whole(self, head: Head, choices: Sequence[JsonObject], usage: JsonObject) -> JsonObject:
        """All texts."""
        return shapes.completion(head, choices, usage=usage)

    def logprobs(self, tokens: Sequence[TokenLogprob], num_top: int) -> JsonObject:
        """Parallel lists."""
        return shapes.completion_logprobs(tokens, num_top)
