"""Words one response from an engine's events: as chunks while it streams, or whole at the end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from engine.protocol import sse
from engine.protocol.json_lists import JsonLists
from engine.protocol.requests import Sampling
from engine.protocol.shapes import Head, JsonObject, TokenLogprob, UsageMember
from gateway.engines.port import EngineEvent
from gateway.routes.dialects import Dialect
from gateway.spelling import Spelling, TextOffsets


@dataclass(slots=True)
class _Choice:
    """What one choice has come to: where its next token begins, and of a whole answer the rest.

    Log-probabilities are kept as the JSON they become, so that little is left to do at the end.
    """

    offsets: TextOffsets
    texts: list[str] = field(default_factory=list)
    logprobs: JsonLists = field(default_factory=JsonLists)
    finish_reason: str = ""


class Reply:
    """One response of `sampling.n` choices, either streamed or whole; made for one request."""

    def __init__(
        self,
        dialect: Dialect,
        head: Head,
        sampling: Sampling,
        spelling: Spelling,
        prompt: Sequence[int],
    ) -> None:
        self._head = head
        self._dialect = dialect
        self._spelling = spelling
        self._num_top = sampling.logprobs
        before = () if sampling.echo else prompt
        self._choices = [_Choice(spelling.offsets(before)) for _ in range(sampling.n)]

    # --- streamed ------------------------------------------------------------------------------

    def opening(self, usage: UsageMember) -> list[bytes]:
        """The events before any text."""
        indices = range(len(self._choices))
        chunks = (self._dialect.opening(self._head, index, usage) for index in indices)
        return [_event(chunk) for chunk in chunks if chunk is not None]

    def deltas(self, event: EngineEvent, usage: UsageMember) -> list[bytes]:
        """The events that an engine's event is worth; it may be none."""
        index = event.index
        if index is None:
            return []
        tokens = self._tokens(event, index)
        logprobs = self._logprobs(tokens) if tokens else None
        chunks = self._dialect.deltas(
            self._head, index, event.text, event.finish_reason, logprobs=logprobs, usage=usage
        )
        return [_event(chunk) for chunk in chunks]

    def closing(self, usage: JsonObject) -> bytes:
        """The event of no choices, with the usage that was asked for."""
        return _event(self._dialect.closing(self._head, usage))

    # --- whole ---------------------------------------------------------------------------------

    def take(self, event: EngineEvent) -> None:
        """Keep what an engine's event says until the end."""
        index = event.index
        if index is None:
            return
        choice = self._choices[index]
        choice.texts.append(event.text)
        if self._num_top is not None:
            choice.logprobs.append(self._logprobs(self._tokens(event, index)))
        choice.finish_reason = event.finish_reason or choice.finish_reason

    def whole(self, usage: JsonObject) -> bytes:
        """The body, of all that was taken."""
        choices = [
            self._dialect.choice(
                index,
                "".join(choice.texts),
                choice.finish_reason,
                None if self._num_top is None else choice.logprobs.whole(),
            )
            for index, choice in enumerate(self._choices)
        ]
        return orjson.dumps(self._dialect.whole(self._head, choices, usage))

    # --- log-probabilities ---------------------------------------------------------------------

    def _tokens(self, event: EngineEvent, index: int) -> list[TokenLogprob]:
        """The tokens of this event as the client is to see them, if it asked to."""
        num_top = self._num_top
        if num_top is None:
            return []
        offsets, spelling = self._choices[index].offsets, self._spelling
        return [
            spelling.tell(scored, num_top, offsets.step(scored.token_id))
            for scored in event.logprobs
        ]

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> JsonObject:
        return self._dialect.logprobs(tokens, self._num_top or 0)


def _event(chunk: JsonObject) -> bytes:
    return sse.encode(orjson.dumps(chunk))
