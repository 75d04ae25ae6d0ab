"""Builds the tokenizer that a GGUF file's metadata describes."""

from enum import IntEnum
from typing import Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from engine.protocol.text.byte_level import token_bytes
from engine.protocol.text.metadata import Metadata
from engine.protocol.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from engine.protocol.text.tokenizer import ControlToken, TextTokenizer

_DECLARED: Final = ("bos", "eos", "eot", "eom", "unknown", "padding", "seperator")


class _Kind(IntEnum):
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


def build(metadata: Metadata) -> TextTokenizer:
    """The tokenizer; raises ModelFileError for a kind that is not supported or does not add up."""
    family = metadata.text("tokenizer.ggml.model")
    if family != "gpt2":
        raise metadata.error(
            f"its tokenizer is of kind {family!r}; from GGUF files only 'gpt2' (byte-level BPE) is"
            " supported"
        )
    rule = _pre_tokenizer(metadata)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    kinds = _kinds(metadata, tokens)
    plain = _plain(metadata, tokens, kinds, rule)
    try:
        return TextTokenizer(
            plain=plain,
            plain_inner=plain,
            control=tuple(
                ControlToken(token_id, text)
                for token_id, (text, kind) in enumerate(zip(tokens, kinds, strict=True))
                if kind == _Kind.CONTROL and text
            ),
            token_bytes=tuple(map(_bytes_of, tokens, kinds)),
            prefix=_wrapping(metadata, "add_bos_token", "bos", default=rule.add_bos),
            suffix=_wrapping(metadata, "add_eos_token", "eos", default=False),
        )
    except ValueError as error:
        raise metadata.error(str(error)) from error


def _pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    name = metadata.text("tokenizer.ggml.pre", "default")
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise metadata.error(f"its pre-tokenizer {name!r} is not supported (known: {known})")
    return rule


def _kinds(metadata: Metadata, tokens: list[str]) -> list[int]:
    key = "tokenizer.ggml.token_type"
    kinds = metadata.integers(key) if key in metadata else [int(_Kind.NORMAL)] * len(tokens)
    if len(kinds) != len(tokens):
        raise metadata.error(f"{key} has {len(kinds)} entries for {len(tokens)} tokens")
    # Some converters leave the special tokens "normal"; their roles say what they are.
    kinds = list(kinds)
    for token_id in declared_ids(metadata).values():
        kinds[token_id] = _Kind.CONTROL
    return kinds


def _plain(
    metadata: Metadata, tokens: list[str], kinds: list[int], rule: PreTokenizer
) -> Tokenizer:
    hidden = (_Kind.UNKNOWN, _Kind.CONTROL, _Kind.UNUSED)
    vocabulary: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind not in hidden:
            vocabulary.setdefault(text, token_id)
    try:
        model = BPE(vocab=vocabulary, merges=_merges(metadata), ignore_merges=rule.ignore_merges)
    except Exception as error:  # `tokenizers` raises bare Exception for a merge of unknown tokens
        raise metadata.error(f"its vocabulary and merges do not fit together ({error})") from error
    plain = Tokenizer(model)
    plain.pre_tokenizer = rule.build()
    plain.add_tokens(
        [
            AddedToken(text, normalized=False)
            for text, kind in zip(tokens, kinds, strict=True)
            if kind == _Kind.USER_DEFINED and text
        ]
    )
    return plain


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    merges = []
    for merge in metadata.texts("tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise metadata.error(f"tokenizer.ggml.merges holds {merge!r}, which is not a pair")
        merges.append((left, right))
    return merges


def _bytes_of(text: str, kind: int) -> bytes:
    if kind == _Kind.USER_DEFINED:
        return text.encode()
    return token_bytes(text) if kind in {_Kind.NORMAL, _Kind.BYTE} else b""


def _wrapping(metadata: Metadata, flag: str, role: str, *, default: bool) -> tuple[int, ...]:
    if not metadata.flag(f"tokenizer.ggml.{flag}", default=default):
        return ()
    token_id = declared_ids(metadata).get(role)
    return () if token_id is None else (token_id,)
