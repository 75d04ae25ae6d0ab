"""Parts of a tokenizer.json that the library which reads it chokes on, or that make it run away."""

import base64
import struct
from typing import Any

from tests.support.hostile_models import ROWS, TOKENIZER


def _pattern(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _replace(content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": content}


def _post(single: list[str], ids: list[int]) -> dict[str, Any]:
    pieces = [{"SpecialToken": {"id": name, "type_id": 0}} for name in single if name != "A"]
    pieces += [{"Sequence": {"id": "A", "type_id": 0}} for name in single if name == "A"]
    table = {"z": {"id": "z", "ids": ids, "tokens": ["z"] * len(ids)}}
    return {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": table}


def _precompiled(*words: int) -> dict[str, Any]:
    table = base64.b64encode(struct.pack(f"<{len(words)}I", *words)).decode()
    return {"type": "Precompiled", "precompiled_charsmap": table}


VOCABULARY: dict[str, int] = TOKENIZER["model"]["vocab"]
# Of a tokenizer's parts (those of `model` after a dot), what the library chokes on.
TOKENIZER_PARTS: list[tuple[str, Any]] = [
    ("normalizer", _precompiled()),
    ("normalizer", _precompiled(2**31 - 1, 0, 0)),
    ("normalizer", _precompiled(16, *[2**32 - 1] * 5)),
    ("normalizer", {"type": "Sequence", "normalizers": [_replace("a" * 100)] * 6}),
    ("normalizer", {"type": "Prepend", "prepend": "a" * 1_000_000}),
    ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": "x"}),
    *(("pre_tokenizer", _pattern(regex)) for regex in ("(", "(a+)+b", "(a|a)*c", "((a|a))*c", "")),
    *(("pre_tokenizer", _pattern(regex)) for regex in ("(?<=a)b", r"(a)\1", r"(?<x>a\g<x>?b)")),
    ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
    ("pre_tokenizer", {"type": "Metaspace", "replacement": "", "prepend_scheme": "always"}),
    ("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}),
    ("post_processor", _post(["x", "A"], [])),
    ("post_processor", _post([], [])),
    ("post_processor", _post(["z"] * 50 + ["A"], [0] * 10_000)),
    ("post_processor", _post(["z", "A"], [2**32 - 1])),
    ("post_processor", _post(["z", "A"], [ROWS - 1])),
    ("post_processor", {"type": "RobertaProcessing", "sep": ["z", 2**31], "cls": ["z", 2**31]}),
    ("truncation", {"direction": "Right", "max_length": 0, "strategy": "OnlySecond", "stride": 5}),
    ("padding", {"strategy": {"Fixed": 2**40}, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}),
    ("decoder", {"type": "Strip", "content": "x", "start": 2**40, "stop": 2**40}),
    ("added_tokens", [{**TOKENIZER["added_tokens"][0], "id": 2**32 - 1}]),
    ("added_tokens", [{**TOKENIZER["added_tokens"][0], "id": 2**23}]),
    ("added_tokens", [{**TOKENIZER["added_tokens"][0], "id": -1}]),
    ("added_tokens", [{**TOKENIZER["added_tokens"][0], "content": ""}]),
    ("added_tokens", [{**TOKENIZER["added_tokens"][0], "content": "<" * 3000}]),
    ("added_tokens", [{**TOKENIZER["added_tokens"][0], "id": i} for i in range(3000)]),
    ("added_tokens", {"a": 1}),
    ("model.dropout", 0.5),
    ("model.continuing_subword_prefix", "##"),
    ("model.end_of_word_suffix", "</w>"),
    ("model.unk_token", "nowhere"),
    ("model.type", "WordPiece"),
    ("model.vocab", {"a": 2**32 - 1, "b": 0}),
    ("model.vocab", {"a": -1, "b": 0}),
    ("model.vocab", {**VOCABULARY, "far": 2**24 - 1}),
    ("model.vocab", dict.fromkeys(VOCABULARY, 0)),
    ("model.vocab", {**VOCABULARY, "<0xZZ>": len(VOCABULARY)}),
    ("model.merges", [["q", "nowhere"]]),
    ("model.merges", ["a b c"]),
    ("model.merges", [["", ""]]),
]
