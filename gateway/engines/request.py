"""The only constructor of engine requests: nothing of a client's body is ever passed through.

Identity, namespace and owner come from the authenticated tenant; the prompt as token ids.
"""

from dataclasses import dataclass
from typing import Any

import orjson

from engine.protocol.requests import Sampling


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """Whose cache a request may touch. `enabled` False: no lookup and no insert."""

    namespace: str
    owner: str
    weight_milli: int
    enabled: bool = True


def completion_body(
    *,
    request_id: str,
    model: str,
    prompt: tuple[int, ...],
    max_tokens: int,
    sampling: Sampling,
    cache: CacheIdentity,
) -> bytes:
    """The JSON of `POST /v1/completions` at an engine; always streamed, with running usage."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": cache.namespace,
        "cache_owner": cache.owner,
        "cache_weight": cache.weight_milli,
        "request_id": request_id,
    }
    if not cache.enabled:
        body["cache"] = "off"
    return orjson.dumps(body | _wanted(sampling))


def _wanted(sampling: Sampling) -> dict[str, Any]:
    """What the client asked for beyond the defaults, field by field.

    Tokens come back as ids: what they are called is said with our own tokenizer.
    """
    wanted: dict[str, Any] = {}
    if sampling.n != 1:
        wanted["n"] = sampling.n
    if sampling.seed is not None:
        wanted["seed"] = sampling.seed
    if sampling.stop:
        wanted["stop"] = sampling.stop
    if sampling.presence_penalty:
        wanted["presence_penalty"] = sampling.presence_penalty
    if sampling.frequency_penalty:
        wanted["frequency_penalty"] = sampling.frequency_penalty
    if sampling.logit_bias:
        wanted["logit_bias"] = {str(token_id): bias for token_id, bias in sampling.logit_bias}
    if sampling.logprobs is not None:
        wanted["logprobs"] = sampling.logprobs
        wanted["return_tokens_as_token_ids"] = True
    if sampling.echo:
        wanted["echo"] = True
    return wanted
