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
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = sampling.stop
    if not cache.enabled:
        body["cache"] = "off"
    return orjson.dumps(body)
