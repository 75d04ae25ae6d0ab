"""What a client asked for, in the core's terms: token ids known, limits applied, seeds drawn."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from engine.core.request import SamplingParams
from engine.protocol.checks import invalid_value
from engine.protocol.requests import Sampling
from engine.protocol.text.model import TextModel
from engine.server.errors import context_length_exceeded

_SEED_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Room:
    """How long a prompt is, of how many tokens in all, and which field to blame for it."""

    prompt_tokens: int
    max_tokens: int
    prompt_param: str

    def output_tokens(self, wanted: int | None) -> int:
        """As many as are wanted, but no more than are left. Raises InvalidRequest for none."""
        left = self.max_tokens - self.prompt_tokens
        if left < 1:
            raise context_length_exceeded(
                self.prompt_param, self.prompt_tokens, wanted, self.max_tokens
            )
        return left if wanted is None else min(wanted, left)


def sampling_params(
    wanted: Sampling, bad_words: tuple[tuple[int, ...], ...], text: TextModel, room: Room
) -> tuple[SamplingParams, ...]:
    """One set for each of `n` samples, alike but for the seed, which counts up from the first.

    `bad_words` are the token sequences that spell the wanted ones. Longer outputs than the context
    has room for end with `length`. Raises InvalidRequest.
    """
    max_tokens = room.output_tokens(wanted.max_tokens)
    first = SamplingParams(
        max_tokens=max_tokens,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        top_k=wanted.top_k,
        min_p=wanted.min_p,
        seed=secrets.randbits(64) if wanted.seed is None else wanted.seed & _SEED_MASK,
        min_tokens=min(wanted.min_tokens, max_tokens),
        stop_token_ids=_stop_token_ids(wanted, text),
        presence_penalty=wanted.presence_penalty,
        frequency_penalty=wanted.frequency_penalty,
        repetition_penalty=wanted.repetition_penalty,
        logit_bias=_logit_bias(wanted, text),
        allowed_token_ids=_allowed(wanted, text),
        bad_words=bad_words,
        logprobs=wanted.logprobs,
        prompt_logprobs=_prompt_logprobs(wanted),
    )
    return tuple(
        replace(first, seed=(first.seed + index) & _SEED_MASK) for index in range(wanted.n)
    )


def _stop_token_ids(wanted: Sampling, text: TextModel) -> frozenset[int]:
    stop_ids = frozenset(wanted.stop_token_ids)
    return stop_ids if wanted.ignore_eos else stop_ids | text.eos_token_ids


def _logit_bias(wanted: Sampling, text: TextModel) -> tuple[tuple[int, float], ...]:
    _require_known("logit_bias", (token_id for token_id, _ in wanted.logit_bias), text)
    return wanted.logit_bias


def _allowed(wanted: Sampling, text: TextModel) -> tuple[int, ...] | None:
    """Sorted, each once. Before `min_tokens` an end is no choice, so another must be allowed."""
    if wanted.allowed_token_ids is None:
        return None
    allowed = frozenset(wanted.allowed_token_ids)
    _require_known("allowed_token_ids", allowed, text)
    if wanted.min_tokens and allowed <= _stop_token_ids(wanted, text):
        raise invalid_value(
            "allowed_token_ids", "with 'min_tokens' it needs a token that does not end the answer"
        )
    return tuple(sorted(allowed))


def _prompt_logprobs(wanted: Sampling) -> int | None:
    """As many as the one that wants more: vLLM's own field, or an echo with log-probabilities."""
    asked = [wanted.prompt_logprobs, wanted.logprobs if wanted.echo else None]
    return max((number for number in asked if number is not None), default=None)


def _require_known(name: str, token_ids: Iterable[int], text: TextModel) -> None:
    if max(token_ids, default=0) >= text.vocab_size:
        raise invalid_value(name, f"its token ids must be below {text.vocab_size}")
