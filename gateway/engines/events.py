"""Reads an engine's stream into events, and holds the engine to the protocol.

Pure: bytes in, events out. Every choice that was asked for ends exactly once before `[DONE]`, and
nothing follows its end; whatever breaks that, or cannot be read, is `EngineBroken`.
"""

from typing import Any, Final

import orjson

from engine.protocol import sse
from gateway.engines.port import EngineBroken, EngineEvent, ScoredToken

FINISH_REASONS: Final = frozenset({"stop", "length"})
ABORTED: Final = "abort"
# How engines write token 5 when asked for `return_tokens_as_token_ids`: `token_id:5`.
ID_PREFIX: Final = "token_id:"
MAX_TOKEN_ID: Final = 2**31 - 1


class EventReader:
    """One completion stream of `choices` choices; `done` once `[DONE]` came in good order.

    A failure waits in `failure` until the events before it have been delivered.
    """

    def __init__(self, choices: int) -> None:
        self._parser = sse.Parser()
        self._open = set(range(choices))
        self.done = False
        self.failure: EngineBroken | None = None

    def feed(self, chunk: bytes) -> list[EngineEvent]:
        """What `chunk` completes."""
        events: list[EngineEvent] = []
        try:
            for payload in self._parser.feed(chunk):
                if payload == sse.DONE_PAYLOAD:
                    self._end()
                else:
                    self._read(orjson.loads(payload), events)
                if self.done or self.failure is not None:
                    break
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.failure = EngineBroken("the stream cannot be read")
            self.failure.__cause__ = error
        return events

    def _end(self) -> None:
        if self._open:
            self.failure = EngineBroken("the stream ended before each choice had a finish reason")
        else:
            self.done = True

    def _read(self, data: dict[str, Any], events: list[EngineEvent]) -> None:
        if "error" in data:
            self.failure = EngineBroken("the engine reported an error")
            return
        usage = data.get("usage")
        prompt, cached, output = _counts(usage) if usage else (None, None, None)
        choices = data["choices"]
        if not choices:
            events.append(EngineEvent(None, "", None, (), prompt, cached, output))
        for choice in choices:
            reason = choice["finish_reason"]
            if reason == ABORTED:
                events.append(EngineEvent(None, "", None, (), prompt, cached, output))
                self.failure = EngineBroken("the engine gave the request up")
                return
            index = self._index(choice["index"], reason)
            logprobs = choice.get("logprobs")
            scored = () if logprobs is None else _scored(logprobs)
            text = choice["text"]
            if type(text) is not str:
                raise ValueError("not a text")
            events.append(EngineEvent(index, text, reason, scored, prompt, cached, output))

    def _index(self, index: object, reason: object) -> int:
        """The index of a choice that is still open; closes it if it ends here."""
        if type(index) is not int or index not in self._open:
            raise ValueError("not a choice that was asked for and is still open")
        if reason is not None:
            if reason not in FINISH_REASONS:
                raise ValueError("not a finish reason")
            self._open.discard(index)
        return index


def _counts(usage: dict[str, Any]) -> tuple[int, int | None, int]:
    """Prompt, cached and output tokens; cached ones may be left unsaid."""
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    return (
        _count(usage["prompt_tokens"]),
        None if cached is None else _count(cached),
        _count(usage["completion_tokens"]),
    )


def _count(value: object) -> int:
    """A number of tokens; bills and budgets are made of it. Raises ValueError."""
    if type(value) is not int or value < 0:
        raise ValueError("not a count")
    return value


def _scored(logprobs: dict[str, Any]) -> tuple[ScoredToken, ...]:
    """The parallel lists of a completion's `logprobs`, token by token."""
    tokens, values = logprobs["tokens"], logprobs["token_logprobs"]
    tops = logprobs["top_logprobs"] or [None] * len(tokens)
    return tuple(
        ScoredToken(
            _token_id(token),
            None if value is None else _logprob(value),
            tuple((_token_id(name), _logprob(each)) for name, each in (top or {}).items()),
        )
        for token, value, top in zip(tokens, values, tops, strict=True)
    )


def _token_id(token: Any) -> int:
    digits: str = token.removeprefix(ID_PREFIX)
    if digits == token or not digits.isdecimal() or (token_id := int(digits)) > MAX_TOKEN_ID:
        raise ValueError("not a token id")
    return token_id


def _logprob(value: object) -> float:
    if type(value) not in {float, int}:
        raise ValueError("not a log-probability")
    return float(value)  # type: ignore[arg-type]
