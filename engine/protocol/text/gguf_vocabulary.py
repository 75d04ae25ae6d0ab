"""Builds the tokenizer that a GGUF file's metadata describes."""

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from engine.protocol.text import gguf_sentencepiece
from engine.protocol.text.byte_level import token_bytes
from engine.protocol.text.gguf_roles import Kind, declared_ids, token_kinds
from engine.protocol.text.metadata import Metadata
from engine.protocol.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from engine.protocol.text.tokenizer import ControlToken, TextTokenizer


def build(metadata: Metadata) -> TextTokenizer:
    """The tokenizer; raises ModelFileError for a kind that is not supported or does not add up."""
    family = metadata.text("tokenizer.ggml.model")
    if family == "gpt2":
        return _byte_level(metadata)
    if family == "llama":
        return _sentencepiece(metadata)
    raise metadata.error(
        f"its tokenizer is of kind {family!r}; from GGUF files 'gpt2' (byte-level BPE) and 'llama'"
        " (SentencePiece) are supported"
    )


def _byte_level(metadata: Metadata) -> TextTokenizer:
    rule = _pre_tokenizer(metadata)
    tokens = metadata.texts("tokenizer.ggml.tokens")
    kinds = token_kinds(metadata, tokens)
    plain = _plain(metadata, tokens, kinds, rule)
    return _text_tokenizer(
        metadata, kinds, plain, plain, tuple(map(_bytes_of, tokens, kinds)), add_bos=rule.add_bos
    )


def _sentencepiece(metadata: Metadata) -> TextTokenizer:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    kinds = token_kinds(metadata, tokens)
    unknown = declared_ids(metadata).get("unknown")
    plain, middle = gguf_sentencepiece.build(metadata, tokens, kinds, unknown)
    table = tuple(map(gguf_sentencepiece.piece_bytes, tokens, kinds))
    return _text_tokenizer(metadata, kinds, plain, middle, table, add_bos=True)


def _text_tokenizer(
    metadata: Metadata,
    kinds: list[int],
    plain: Tokenizer,
    middle: Tokenizer,
    table: tuple[bytes, ...],
    *,
    add_bos: bool,
) -> TextTokenizer:
    """With control tokens by their kind, and what the file says that texts are wrapped in."""
    try:
        return TextTokenizer(
            plain=plain,
            plain_inner=plain,
            middle=middle,
            control=tuple(
                ControlToken(token_id, text)
                for token_id, text in enumerate(metadata.texts("tokenizer.ggml.tokens"))
                if kinds[token_id] == Kind.CONTROL and text
            ),
            token_bytes=table,
            prefix=_wrapping(metadata, "add_bos_token", "bos", default=add_bos),
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


def _plain(
    metadata: Metadata, tokens: list[str], kinds: list[int], rule: PreTokenizer
) -> Tokenizer:
    hidden = (Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED)
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
            if kind == Kind.USER_DEFINED and text
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
    if kind == Kind.USER_DEFINED:
        return text.encode()
    return token_bytes(text) if kind in {Kind.NORMAL, Kind.BYTE} else b""


def _wrapping(metadata: Metadata, flag: str, role: str, *, default: bool) -> tuple[int, ...]:
    if not metadata.flag(f"tokenizer.ggml.{flag}", default=default):
        return ()
    token_id = declared_ids(metadata).get(role)
    return () if token_id is None else (token_id,)
