"""Builds the SentencePiece tokenizer (BPE by scores) that a GGUF file's metadata describes.

Such a vocabulary has no list of merges: of two neighbouring pieces whose concatenation is a piece,
those with the best score merge first. `tokenizers` wants merges, so every way of cutting a piece in
two pieces becomes one, ordered by score. That is what transformers does with the same vocabularies;
it says the same wherever the characters of a piece are pieces, as training makes them, and no two
overlapping pairs make the same one.
Source: SentencePiece, arXiv:1808.06226; what a file leaves open is done as llama.cpp does it.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer, Prepend, Replace
from tokenizers.normalizers import Sequence as NormalizerSequence

from engine.protocol.text.gguf_roles import Kind
from engine.protocol.text.metadata import Metadata

_SPACE: Final = "\u2581"
_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
_SCORES: Final = "tokenizer.ggml.scores"
# The sum of the squares of all pieces' lengths; Gemma 3's is below 2**25.
_MAX_CUTTING: Final = 1 << 28

Merge = tuple[str, str]


def build(
    metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int], unknown: int | None
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizer of ordinary text after a control token or at the start, and of text elsewhere.

    They differ where the vocabulary puts a space before every first word. `unknown` is the token
    for what has no other. Raises ModelFileError.
    """
    vocabulary = _vocabulary(tokens, kinds)
    pieces = {text: i for text, i in vocabulary.items() if kinds[i] == Kind.NORMAL}
    if sum(len(piece) ** 2 for piece in pieces) > _MAX_CUTTING:
        raise metadata.error("its tokens are too long for a SentencePiece vocabulary")
    merges = merges_by_score(pieces, _scores(metadata, len(tokens)))
    whole = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    if not whole and unknown is None:
        raise metadata.error("its vocabulary lacks tokens of single bytes, and one for the unknown")
    unknown_text = None
    if unknown is not None:
        unknown_text = tokens[unknown]
        vocabulary.setdefault(unknown_text, unknown)
    model = BPE(
        vocab=vocabulary, merges=merges, byte_fallback=whole, unk_token=unknown_text, fuse_unk=True
    )
    defined = [text for text, i in vocabulary.items() if kinds[i] == Kind.USER_DEFINED]
    prefixed = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    inner = _tokenizer(model, defined, [])
    return (_tokenizer(model, defined, [Prepend(_SPACE)]) if prefixed else inner), inner


def piece_bytes(text: str, kind: int) -> bytes:
    """The bytes that a token stands for; control tokens stand for none."""
    if kind == Kind.BYTE and (byte := _BYTE.fullmatch(text)):
        return bytes.fromhex(byte[1])
    if kind in {Kind.NORMAL, Kind.USER_DEFINED}:
        return text.replace(_SPACE, " ").encode()
    return b""


def merges_by_score(pieces: Mapping[str, int], scores: Sequence[float]) -> list[Merge]:
    """Every cut of a piece into two pieces, best score first; `pieces` are token ids by text."""
    merges: list[Merge] = []
    for piece in sorted(pieces, key=lambda piece: -scores[pieces[piece]]):
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in pieces and right in pieces:
                merges.append((left, right))
    return merges


def _vocabulary(tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Token ids by text, as far as ordinary text may produce them.

    A user-defined token is looked for before spaces are written as that sign, so it has both
    spellings.
    """
    vocabulary: dict[str, int] = {}
    for token_id, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind in {Kind.NORMAL, Kind.BYTE}:
            vocabulary.setdefault(text, token_id)
        elif kind == Kind.USER_DEFINED and text:
            vocabulary.setdefault(text.replace(_SPACE, " "), token_id)
    return vocabulary


def _scores(metadata: Metadata, num_tokens: int) -> list[float]:
    scores = metadata.numbers(_SCORES)
    if len(scores) != num_tokens:
        raise metadata.error(f"{_SCORES} has {len(scores)} entries for {num_tokens} tokens")
    if not all(map(math.isfinite, scores)):
        raise metadata.error(f"{_SCORES} holds what is not a number")
    return scores


def _tokenizer(model: BPE, defined: Iterable[str], before: list[Normalizer]) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = NormalizerSequence([*before, Replace(" ", _SPACE)])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in defined])
    return tokenizer
