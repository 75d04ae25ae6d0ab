"""Keyed hashes of how a prompt begins: equal where a cached prefix may be shared, else random.

The fair queue places by them and never sees a token; the log keeps them, and without the key they
tell nobody what was asked. A namespace is part of each, so two tenants' never meet.
"""

from array import array
from hashlib import blake2b
from typing import Final

from gateway.engines.request import CacheIdentity

# As many tokens as make a cached prefix worth a journey; beginnings grow by as many.
STEP_TOKENS: Final = 64
MOST: Final = 8
# Below 2^53, so that every JSON reader keeps them exactly.
BITS: Final = 52


def beginnings(key: bytes, cache: CacheIdentity, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Hashes of the first 64 tokens, the first 128 and so on, at most eight, shortest first.

    Of a shorter prompt the one hash of all of it; none where no cache may be used.
    """
    if not cache.enabled:
        return ()
    hashed = blake2b(cache.namespace.encode(), key=key, digest_size=8)
    tokens = array("I", prompt[: MOST * STEP_TOKENS])
    hashes = []
    for start in range(0, max(1, len(tokens) - STEP_TOKENS + 1), STEP_TOKENS):
        hashed.update(tokens[start : start + STEP_TOKENS].tobytes())
        hashes.append(int.from_bytes(hashed.digest(), "big") >> (64 - BITS))
    return tuple(hashes)
