"""Writes small GGUF files byte by byte, so that a test can get any byte wrong."""

import struct
from typing import Any

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_FORMATS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(kind: int, item: Any) -> bytes:
    if kind == STRING:
        return text(item)
    if kind == ARRAY:
        element, items = item
        body = b"".join(value(element, one) for one in items)
        return struct.pack("<IQ", element, len(items)) + body
    return struct.pack(_FORMATS[kind], item)


def pair(key: str, kind: int, item: Any) -> bytes:
    return text(key) + struct.pack("<I", kind) + value(kind, item)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    """`shape` as GGUF stores it: innermost first."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def container(
    pairs: list[bytes],
    tensors: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    num_tensors, num_pairs = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def byte_level_alphabet() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + rank) for rank in range(68)]


TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tokenizer_pairs(**changes: bytes) -> list[bytes]:
    """A whole byte-level vocabulary with four control tokens and one user-defined token."""
    control = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = byte_level_alphabet()
    tokens = [*control, *alphabet, "ab", "abc", "<think>"]
    kinds = [3] * len(control) + [1] * (len(alphabet) + 2) + [4]
    pairs = {
        "general.architecture": pair("general.architecture", STRING, "llama"),
        "llama.context_length": pair("llama.context_length", U32, 64),
        "model": pair("tokenizer.ggml.model", STRING, "gpt2"),
        "pre": pair("tokenizer.ggml.pre", STRING, "smollm"),
        "tokens": pair("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        "types": pair("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        "merges": pair("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "ab c"])),
        "eos": pair("tokenizer.ggml.eos_token_id", U32, 0),
        "template": pair("tokenizer.chat_template", STRING, TEMPLATE),
    }
    return [item for item in (pairs | changes).values() if item]
