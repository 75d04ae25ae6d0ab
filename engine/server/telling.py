"""Tokens in words: what a client reads of the tokens of a prompt and of its answers.

Runs on the event loop, for those requests only that asked for token lists.
"""

from collections.abc import Sequence
from typing import Any, Final

from engine.core.batch import Logprobs
from engine.protocol.requests import Sampling
from engine.protocol.shapes import MIN_LOGPROB, TokenLogprob
from engine.protocol.text.model import TextModel
from engine.server.answers import Dialect
from engine.server.output import Echo
from engine.server.stream import ListedToken

JsonObject = dict[str, Any]


class TokenTeller:
    """Writes token lists of one request in its dialect and as its `Sampling` asks."""

    def __init__(self, text: TextModel, dialect: Dialect, sampling: Sampling) -> None:
        self._text: Final = text
        self._dialect: Final = dialect
        self._sampling: Final = sampling

    def told(self, tokens: Sequence[ListedToken]) -> list[TokenLogprob]:
        """Output tokens with their log-probabilities; none where those were not asked for."""
        num_top = self._sampling.logprobs
        if num_top is None:
            return []
        return [self._told(t.token_id, t.logprobs, t.offset, num_top) for t in tokens]

    def logprobs(self, told: Sequence[TokenLogprob]) -> JsonObject | None:
        """The `logprobs` member of a choice; None where it was not asked for."""
        num_top = self._sampling.logprobs
        return None if num_top is None else self._dialect.logprobs(told, num_top)

    def ids(self, tokens: Sequence[ListedToken]) -> JsonObject:
        """The `token_ids` member of a choice, as vLLM has it, where it was asked for."""
        if not self._sampling.return_token_ids:
            return {}
        return {"token_ids": [token.token_id for token in tokens]}

    def echoed(
        self, prompt: Sequence[int], echo: Echo, scores: Sequence[Logprobs]
    ) -> list[TokenLogprob]:
        """An echoed prompt's tokens, likewise; the first has no log-probability."""
        num_top = self._sampling.logprobs
        if num_top is None:
            return []
        return [
            self._told(token_id, score, offset, num_top)
            for token_id, offset, score in zip(prompt, echo.offsets, (None, *scores), strict=True)
        ]

    def prompt_logprobs(self, scores: Sequence[Logprobs]) -> list[JsonObject]:
        """Items of vLLM's `prompt_logprobs`: one object by token id for each position."""
        num_top = self._sampling.prompt_logprobs or 0
        return [self._ranked(score, num_top) for score in scores]

    def _ranked(self, score: Logprobs, num_top: int) -> JsonObject:
        ranked = {str(score.token_id): self._rank(score.token_id, score.logprob, score.rank)}
        for rank, (token_id, logprob) in enumerate(score.top[:num_top], start=1):
            ranked.setdefault(str(token_id), self._rank(token_id, logprob, rank))
        return ranked

    def _rank(self, token_id: int, logprob: float, rank: int) -> JsonObject:
        decoded = self._text.token_bytes(token_id).decode("utf-8", "replace")
        return {"logprob": max(logprob, MIN_LOGPROB), "rank": rank, "decoded_token": decoded}

    def _told(
        self, token_id: int, score: Logprobs | None, offset: int, num_top: int
    ) -> TokenLogprob:
        if score is None:
            return self._token(token_id, None, offset=offset)
        top = tuple(self._token(other, logprob) for other, logprob in score.top[:num_top])
        return self._token(token_id, score.logprob, top, offset)

    def _token(
        self,
        token_id: int,
        logprob: float | None,
        top: tuple[TokenLogprob, ...] = (),
        offset: int = 0,
    ) -> TokenLogprob:
        data = self._text.token_bytes(token_id)
        if self._sampling.return_tokens_as_token_ids:
            token = f"token_id:{token_id}"
        else:
            token = data.decode("utf-8", "replace")
        return TokenLogprob(token, data, logprob, top, offset)
