"""How each pre-tokenizer that a GGUF names cuts text into words before BPE.

The regular expressions are those llama.cpp attaches to the names, which is what the file promises;
they are applied one after another, and what none of them matches is a word of its own.
"""

from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MODERN: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The expressions, and what llama.cpp's name for them implies beside them."""

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> Any:
        """The same as a `tokenizers` pre-tokenizer."""
        splits = [Split(Regex(expression), "isolated") for expression in self.expressions]
        return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA3: Final = PreTokenizer(
    (_MODERN.format(digits=r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True
)
_DEFAULT: Final = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: Final = {
    "default": _DEFAULT,
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer((_MODERN.format(digits=r"\p{N}"),)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
}
