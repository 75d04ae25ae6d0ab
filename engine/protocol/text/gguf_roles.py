"""What GGUF metadata says that tokens are for: their kinds, and the special roles they play."""

from enum import IntEnum
from typing import Final

from engine.protocol.text.metadata import Metadata

_DECLARED: Final = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator")


class Kind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def declared_ids(metadata: Metadata) -> dict[str, int]:
    """The special roles (`bos`, `eos`, ...) that the file assigns, each to an existing token."""
    num_tokens = len(metadata.texts("tokenizer.ggml.tokens"))
    roles: dict[str, int] = {}
    for role in _DECLARED:
        key = f"tokenizer.ggml.{role}_token_id"
        if key not in metadata:
            continue
        token_id = metadata.integer(key)
        if not 0 <= token_id < num_tokens:
            raise metadata.error(f"{key} is {token_id}, but there are {num_tokens} tokens")
        roles[role] = token_id
    return roles


def token_kinds(metadata: Metadata, tokens: list[str]) -> list[int]:
    """The kind of each token."""
    key = "tokenizer.ggml.token_type"
    kinds = metadata.integers(key) if key in metadata else [int(Kind.NORMAL)] * len(tokens)
    if len(kinds) != len(tokens):
        raise metadata.error(f"{key} has {len(kinds)} entries for {len(tokens)} tokens")
    # Some converters leave the special tokens "normal"; their roles say what they are.
    kinds = list(kinds)
    for token_id in declared_ids(metadata).values():
        kinds[token_id] = Kind.CONTROL
    return kinds
