"""Builds the tokenizer that a Hugging Face folder's tokenizer.json describes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from engine.protocol.text.byte_level import token_bytes
from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.hf_checks import checked
from engine.protocol.text.json_file import read_json
from engine.protocol.text.tokenizer import ControlToken, TextTokenizer, is_panic

_BYTE: Final = re.compile("<0x([0-9A-Fa-f]{2})>")
_PROBE: Final = "a"


def build(path: Path) -> TextTokenizer:
    """The tokenizer of a tokenizer.json; raises ModelFileError."""
    description = read_json(path)
    model = description.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        raise ModelFileError(path, "is not a BPE tokenizer; other kinds are not supported")
    try:
        return _build(description, model)
    except BaseException as error:
        # `tokenizers` raises bare Exception for whatever it dislikes, or its Rust code panics.
        if isinstance(error, Exception) or is_panic(error):
            raise ModelFileError(path, f"is not a usable tokenizer ({error})") from error
        raise


def _build(description: Mapping[str, Any], model: Mapping[str, Any]) -> TextTokenizer:
    parts = checked(description)
    added = parts["added_tokens"]
    control = tuple(_control_token(token) for token in added if token["special"])
    plain_description = _without_control(parts, model, control)
    whole = Tokenizer.from_str(json.dumps(parts))
    table = _token_bytes(description, model, added)
    prefix, suffix = _wrapping(whole)
    if max((*prefix, *suffix), default=-1) >= len(table):
        raise ValueError("its post-processor adds a token that does not exist")
    return TextTokenizer(
        plain=Tokenizer.from_str(json.dumps(plain_description)),
        plain_inner=Tokenizer.from_str(json.dumps(_inner(plain_description))),
        control=control,
        token_bytes=table,
        prefix=prefix,
        suffix=suffix,
    )


def _control_token(token: Mapping[str, Any]) -> ControlToken:
    return ControlToken(token["id"], token["content"], token["lstrip"], token["rstrip"])


def _without_control(
    description: Mapping[str, Any], model: Mapping[str, Any], control: tuple[ControlToken, ...]
) -> dict[str, Any]:
    """The same tokenizer, to which control tokens are unknown.

    Other added tokens join the vocabulary, because there they keep their ids.
    """
    hidden = {token.text for token in control} - {model.get("unk_token")}
    kept = [token for token in description.get("added_tokens") or [] if not token["special"]]
    vocabulary = {text: i for text, i in model["vocab"].items() if text not in hidden}
    vocabulary |= {token["content"]: token["id"] for token in kept}
    return {
        **description,
        "added_tokens": kept,
        "model": {**model, "vocab": vocabulary},
        "post_processor": None,
    }


def _inner(value: Any) -> Any:
    """The description for text that does not begin the prompt: no space before its first word."""
    if isinstance(value, dict):
        return {
            key: "never" if key == "prepend_scheme" and item == "first" else _inner(item)
            for key, item in value.items()
            if key != "model"
        } | ({"model": value["model"]} if "model" in value else {})
    return [_inner(item) for item in value] if isinstance(value, list) else value


def _wrapping(whole: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    bare = whole.encode(_PROBE, add_special_tokens=False).ids
    full = whole.encode(_PROBE, add_special_tokens=True).ids
    starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
    if not starts:
        raise ValueError("its post-processor leaves texts out")
    start = starts[0]
    return tuple(full[:start]), tuple(full[start + len(bare) :])


def _token_bytes(
    description: Mapping[str, Any], model: Mapping[str, Any], added: list[Mapping[str, Any]]
) -> tuple[bytes, ...]:
    byte_level = '"ByteLevel"' in json.dumps(description.get("decoder"))
    ids = {**{i: text for text, i in model["vocab"].items()}, **{t["id"]: "" for t in added}}
    table = [b""] * (max(ids, default=-1) + 1)
    for token_id, text in ids.items():
        table[token_id] = token_bytes(text) if byte_level else _sentencepiece_bytes(text)
    for token in added:
        table[token["id"]] = b"" if token["special"] else token["content"].encode()
    return tuple(table)


def _sentencepiece_bytes(text: str) -> bytes:
    byte = _BYTE.fullmatch(text)
    return bytes.fromhex(byte[1]) if byte else text.replace("\u2581", " ").encode()
