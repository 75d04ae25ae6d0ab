"""What of a tokenizer.json is given to the `tokenizers` library: parts known to be harmless.

The library trusts its descriptions: some abort the process, panic, or let a text take time or
memory without bound. So a description may name only the parts that byte-pair tokenizers of language
models are made of, with bounded sizes, and patterns that cannot run away.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

from engine.protocol.text.patterns import check_pattern

_NORMALIZERS: Final = frozenset(
    {"Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip", "StripAccents"}
)
_PRE_TOKENIZERS: Final = frozenset(
    {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Whitespace", "WhitespaceSplit"}
)
_POST_PROCESSORS: Final = frozenset(
    {"BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing"}
)
_MAX_PARTS: Final = 16
_MAX_GROWTH: Final = 16
_MAX_WRAPPING: Final = 64  # tokens that a post-processor puts around a text
_MAX_TOKEN_ID: Final = (1 << 24) - 1
_MAX_UNUSED: Final = 1 << 16  # ids, besides as many as are used


def checked(description: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that encode a text; ValueError says what is not supported."""
    _check_model(description["model"], description.get("added_tokens") or [])
    normalizers = list(_parts(description.get("normalizer"), "normalizers", _NORMALIZERS))
    for part in _parts(description.get("pre_tokenizer"), "pretokenizers", _PRE_TOKENIZERS):
        _check_pattern(part)
    for part in _parts(description.get("post_processor"), "processors", _POST_PROCESSORS):
        _check_wrapping(part)
    for part in normalizers:
        _check_pattern(part)
    if prod(map(_growth, normalizers)) > _MAX_GROWTH:
        raise ValueError("its normalizer makes texts far longer")
    kept = ("version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
    return {key: description[key] for key in kept if key in description} | {
        "added_tokens": description.get("added_tokens") or [],
        "truncation": None,
        "padding": None,
        "decoder": None,  # nothing is decoded by the library
    }


def _check_model(model: Mapping[str, Any], added: Any) -> None:
    vocabulary = model["vocab"]
    if not isinstance(vocabulary, dict) or not isinstance(added, list):
        raise TypeError("its vocabulary is not an object, or its added tokens are not a list")
    ids = [*vocabulary.values(), *(token["id"] for token in added)]
    if not all(type(token_id) is int for token_id in ids):
        raise TypeError("it has token ids that are no integers")
    highest = max(ids, default=0)
    if min(ids, default=0) < 0:
        raise ValueError("it has negative token ids")
    if highest > min(_MAX_TOKEN_ID, 2 * len(ids) + _MAX_UNUSED):
        raise ValueError(f"its token id {highest} is above what {len(ids)} tokens need")
    if model.get("dropout"):
        raise ValueError("it tokenizes at random (dropout)")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ValueError(f"{name} is not supported")


def _parts(part: Any, inside: str, known: frozenset[str], depth: int = 4) -> Iterator[Any]:
    """The part, or those in a sequence, which has them under the name `inside`."""
    if part is None:
        return
    kind = part["type"]
    if kind == "Sequence" and depth:
        if len(part[inside]) > _MAX_PARTS:
            raise ValueError(f"it has more than {_MAX_PARTS} {inside} in a sequence")
        for one in part[inside]:
            yield from _parts(one, inside, known, depth - 1)
    elif kind in known:
        yield part
    else:
        raise ValueError(f"{str(kind)[:40]!r} among its {inside} is not supported")


def _check_wrapping(part: Mapping[str, Any]) -> None:
    if part["type"] != "TemplateProcessing":
        return
    tables = part["special_tokens"]
    pieces = [*part["single"], *part["pair"]]
    names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
    if sum(len(tables[name]["ids"]) for name in names) > _MAX_WRAPPING:
        raise ValueError(f"its post-processor adds more than {_MAX_WRAPPING} tokens")


def _growth(part: Mapping[str, Any]) -> int:
    """How many times longer a normalizer can make a text; a bound."""
    if part["type"] == "Prepend":
        return 1 + len(part["prepend"])
    return max(1, len(part["content"])) if part["type"] == "Replace" else 1


def _check_pattern(part: Mapping[str, Any]) -> None:
    pattern = part.get("pattern")
    if isinstance(pattern, dict) and "Regex" in pattern:
        check_pattern(pattern["Regex"])
