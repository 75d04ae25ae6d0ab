"""Hashing a prompt of 50,000 tokens into block keys, beside a bare SHA-256 of the same bytes.

Bare means: the message of every block, put together beforehand, hashed one after the other. What
ours takes longer is packing the tokens and chaining the keys. Measured in CPU time.
"""

import random
import statistics
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from struct import pack

from engine.core.block_hash import BlockHasher, Tag, frame

NUM_TOKENS = 50_000
BLOCK = 16
ROUNDS = 31
NAMESPACE = "n" * 43
DIGEST = bytes(32)


def run(model: Path) -> dict[str, object]:  # noqa: ARG001 - every section is given the model
    """Medians, and the median of the ratios of runs that follow each other."""
    draw = random.Random(50_000)
    token_ids = tuple(draw.randrange(150_000) for _ in range(NUM_TOKENS))
    hasher = BlockHasher(DIGEST, BLOCK)
    keys = hasher.keys(NAMESPACE, None, token_ids)
    messages = _messages(token_ids, keys)
    if _bare(messages) != keys:
        raise RuntimeError("the two do not hash the same bytes")
    ours, bare = [], []
    for _ in range(ROUNDS):
        bare.append(_seconds(lambda: _bare(messages)))
        ours.append(_seconds(lambda: hasher.keys(NAMESPACE, None, token_ids)))
    return {
        "tokens": NUM_TOKENS,
        "blocks": len(keys),
        "evenhand_ms": 1000 * statistics.median(ours),
        "bare_sha256_ms": 1000 * statistics.median(bare),
        "ratio": statistics.median(o / b for o, b in zip(ours, bare, strict=True)),
        "aim": 2.5,
    }


def _messages(token_ids: tuple[int, ...], keys: list[bytes]) -> list[bytes]:
    """What is hashed for each block, written out by the encoding's definition."""
    header = frame(Tag.VERSION, b"evenhand/block/v1") + frame(Tag.MODEL, DIGEST)
    before = [frame(Tag.NAMESPACE, NAMESPACE.encode())]
    before.extend(frame(Tag.PARENT, key) for key in keys[:-1])
    return [
        header + origin + frame(Tag.TOKENS, pack(f">{BLOCK}I", *token_ids[at : at + BLOCK]))
        for origin, at in zip(before, range(0, NUM_TOKENS, BLOCK), strict=True)
    ]


def _bare(messages: list[bytes]) -> list[bytes]:
    return [sha256(message).digest() for message in messages]


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
