"""Models gone wrong: hundreds of ways to break a whole one, drawn from a fixed seed.

Every case is a path under a folder; what is broken is named by the path.
"""

import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.protocol.text.gguf_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U32,
    U64,
    container,
    pair,
    tensor,
    text,
)
from tests.support.hostile_models import (
    CONFIG,
    METADATA,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENS,
    gguf_bytes,
    weights,
    write_folder,
    write_json,
)
from tests.support.hostile_tokenizers import TOKENIZER_PARTS

ENDLESS = "{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}"
ODD_VALUES: list[tuple[int, Any] | None] = [
    None,
    (U32, 0),
    (U32, 1),
    (U32, 2**32 - 1),
    (U64, 2**63),
    (I32, -1),
    (F32, float("nan")),
    (F32, float("inf")),
    (STRING, ""),
    (STRING, "x\n" * 5000),
    (STRING, b"\xff\xfe"),
    (BOOL, True),
    (ARRAY, (STRING, [])),
    (ARRAY, (STRING, ["a"] * 3)),
    (ARRAY, (I32, [-1, 2**31 - 1])),
    (ARRAY, (F32, [float("nan")])),
]
ODD_JSON = ["", "text", "\ud800", 0, 1, -1, 2**63, 2**200, 0.5, 1e308, True, None, [], {}, [[]]]
ODD_JSON += ["\x00", "x" * 5000, [None], {"a": {}}, 16777215, ["<|end|>"] * 3]


def write_cases(folder: Path, *, seed: int = 0) -> list[Path]:
    """Write all of them; returns their paths, the whole models first."""
    random_ = random.Random(seed)
    (folder / "whole.gguf").write_bytes(gguf_bytes())
    write_folder(folder / "whole")
    write_folder(folder / "sharded", shards=3)
    paths = [folder / "whole.gguf", folder / "whole", folder / "sharded"]
    for name, content in _gguf_cases(random_):
        path = folder / f"{name}.gguf"
        path.write_bytes(content)
        paths.append(path)
    for name, make in _odd_files():
        path = folder / f"{name}.gguf"
        make(path)
        paths.append(path)
    for number, (name, change) in enumerate(_folder_cases(random_)):
        path = folder / f"folder {number} {name}"
        write_folder(path, shards=3 if "index" in name else 1)
        change(path)
        paths.append(path)
    return paths


def _gguf_cases(random_: random.Random) -> Iterator[tuple[str, bytes]]:
    whole = gguf_bytes()
    for number in range(40):
        yield f"cut {number}", whole[: random_.randrange(len(whole))]
    yield "cut last byte", whole[:-1]
    head = whole.index(b"blk.0.attn_q")
    for number in range(80):
        changed = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2, 8))):
            changed[random_.randrange(head + 900)] ^= 1 << random_.randrange(8)
        yield f"flipped {number}", bytes(changed)
    for number in range(20):
        changed = bytearray(whole)
        place = random_.randrange(4, 4000)
        changed[place : place + 8] = struct.pack("<Q", random_.choice((2**63, 2**64 - 1, 2**32)))
        yield f"huge number {number}", bytes(changed)
    for key in METADATA:
        for value in random_.sample(ODD_VALUES, 5):
            yield f"{key} {_words(value)}", gguf_bytes({key: value})
    for name, change in _tensor_changes(random_):
        yield name, gguf_bytes(change=change)
    for number, template in enumerate((ENDLESS, "{% if %}", "{{ 'x' * 10 ** 9 }}", "{{" * 9000)):
        yield f"template {number}", gguf_bytes({"tokenizer.chat_template": (STRING, template)})
    yield "infinite weights", whole[:-64] + b"\x00\x00\x80\x7f" * 16
    yield "long control token", gguf_bytes(_with_token("<" * 2000))
    yield "many control tokens", gguf_bytes(_with_token(*(f"<|{i}|>" for i in range(20_000))))
    yield "more tokens than rows", gguf_bytes(_with_token(*(f"<|{i}|>" for i in range(100))))
    yield "many arrays", gguf_bytes({f"k{i}": (ARRAY, (BOOL, [True])) for i in range(20_000)})
    yield "long array", gguf_bytes({"k": (ARRAY, (BOOL, [True] * 300_000))})
    yield (
        "many tensors",
        container(
            [pair(key, *value) for key, value in METADATA.items()],
            [tensor(f"t{i}", (8,), 0, 32 * i) for i in range(5_000)],
            bytes(32 * 5_000),
        ),
    )
    yield (
        "many rope divisors",  # in 2.6 bits each
        container(
            [pair(key, *value) for key, value in METADATA.items()],
            [tensor("rope_freqs.weight", (256 * 50_000,), 10, 0)],
            bytes(84 * 50_000),
        ),
    )
    yield from _sentencepiece_cases()
    nested = text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) * 500
    yield "nested arrays", container([nested], [])


def _sentencepiece_cases() -> Iterator[tuple[str, bytes]]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "a", "b", "ab", "\u2581ab"]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 5
    whole: dict[str, tuple[int, Any] | None] = {
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.pre": (STRING, "default"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, kinds)),
        "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0])),
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.unknown_token_id": (U32, 0),
    }
    yield "sentencepiece whole", gguf_bytes(whole)
    for key, number in product(whole, range(3)):
        value = ODD_VALUES[(5 * number + len(key)) % len(ODD_VALUES)]
        yield f"sentencepiece {key} {_words(value)}", gguf_bytes(whole | {key: value})
    for score in (float("nan"), float("inf"), -1e38):
        scores = (ARRAY, (F32, [score] * len(tokens)))
        yield f"sentencepiece scores {score}", gguf_bytes(whole | {"tokenizer.ggml.scores": scores})
    for length in (300, 12_000, 60_000):
        longer = {
            "tokenizer.ggml.tokens": (ARRAY, (STRING, [*tokens, "a" * length])),
            "tokenizer.ggml.token_type": (ARRAY, (I32, [*kinds, 1])),
            "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * (len(tokens) + 1))),
        }
        yield f"sentencepiece token of {length}", gguf_bytes(whole | longer)


def _with_token(*tokens: str) -> dict[str, tuple[int, Any] | None]:
    return {
        "tokenizer.ggml.tokens": (ARRAY, (STRING, [*TOKENS, *tokens])),
        "tokenizer.ggml.token_type": (
            ARRAY,
            (I32, [3] * 3 + [1] * (len(TOKENS) - 3) + [3] * len(tokens)),
        ),
    }


def _tensor_changes(random_: random.Random) -> Iterator[tuple[str, Any]]:
    names = [f"{name}.weight" for name in weights(np.random.default_rng(0))]

    def only(wanted: str, **changes: Any) -> Any:
        def change(name: str, shape: list[int], kind: int, offset: int) -> Any:
            if name != wanted:
                return name, shape, kind, offset
            return (
                changes.get("name", name),
                changes.get("shape", shape),
                changes.get("kind", kind),
                changes.get("offset", offset),
            )

        return change

    shapes = [[0], [32], [64, 64], [32, 2**63], [2**32, 2**32], [1, 1, 1, 32], [256, 4], [32] * 5]
    for name in names:
        for shape in random_.sample(shapes, 3):
            yield f"{name} shape {shape}", only(name, shape=shape)
        for kind in random_.sample(range(42), 4):
            yield f"{name} type {kind}", only(name, kind=kind)
        offset = random_.choice((32, 2**20, 2**63, 2**64 - 32, 2**64 - 1, 7))
        yield f"{name} offset {offset}", only(name, offset=offset)
        yield f"{name} gone", only(name, name="blk.0.ffn_up_exps.weight")
        yield f"{name} twice", only(name, name=random_.choice(names))


def _odd_files() -> Iterator[tuple[str, Callable[[Path], Any]]]:
    yield "folder", lambda path: path.mkdir()
    yield "pipe", os.mkfifo
    yield "empty", lambda path: path.write_bytes(b"")
    yield "link to itself", lambda path: path.symlink_to(path)
    yield "link to nothing", lambda path: path.symlink_to(path.with_name("nothing"))
    yield "zeros without end", lambda path: path.symlink_to("/dev/zero")
    yield "noise without end", lambda path: path.symlink_to("/dev/urandom")
    yield "nothing", lambda path: path.symlink_to("/dev/null")
    yield "memory of the process", lambda path: path.symlink_to("/proc/self/mem")
    yield "file without size", lambda path: path.symlink_to("/proc/self/maps")
    yield "sparse", _sparse
    yield "never there", lambda path: None


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 2**30, 2**30))
        file.truncate(1 << 42)


def _folder_cases(random_: random.Random) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    for key in CONFIG:
        for value in random_.sample(ODD_JSON, 4):
            yield f"config {key}", _json_change("config.json", key, value)
    for key in TOKENIZER_CONFIG:
        for value in random_.sample(ODD_JSON, 4):
            yield f"tokenizer_config {key}", _json_change("tokenizer_config.json", key, value)
    yield from _tokenizer_cases(random_)
    yield from _content_cases(random_)
    yield from _safetensors_cases(random_)
    yield from _index_cases()


def _tokenizer_cases(random_: random.Random) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    for number in range(60):
        yield f"tokenizer {number}", _json_mutation("tokenizer.json", random_.randrange(2**32))
    for part, value in TOKENIZER_PARTS:
        yield f"tokenizer {part}", _part_change(part, value)


def _content_cases(random_: random.Random) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        for name, content in _odd_texts(random_):
            yield f"{file} {name}", _content(file, content)
    for file in ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"):
        for name, make in _odd_files():
            yield f"{file} {name}", _replacement(file, make)
    for number, template in enumerate((ENDLESS, "{% if %}", "x" * 2_000_000)):
        yield f"template {number}", _content("chat_template.jinja", template.encode())


def _odd_texts(random_: random.Random) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "no object", b"[]"
    yield "cut", json.dumps(TOKENIZER).encode()[: random_.randrange(1, 2000)]
    yield "not UTF-8", b'{"model_type": "\xff"}'
    yield "UTF-16", json.dumps(CONFIG).encode("utf-16")
    yield "deep lists", b'{"a":' + b"[" * 200_000
    yield "deep objects", b'{"a":' * 100_000
    yield "not a number", b'{"model_type": NaN, "hidden_size": Infinity}'
    yield "huge number", b'{"hidden_size": ' + b"9" * 5000 + b"}"
    yield "many lists", b'{"a": [' + b"[]," * 2_200_000 + b"[]]}"
    yield "many objects", b'{"a": [' + b"{}," * 300_000 + b"{}]}"


def _safetensors_cases(random_: random.Random) -> Iterator[tuple[str, Callable[[Path], Any]]]:
    for number in range(25):
        yield f"safetensors cut {number}", _damage(random_.randrange(2**32), _cut)
    for number in range(45):
        yield f"safetensors flipped {number}", _damage(random_.randrange(2**32), _flip)
    for number in range(30):
        yield f"safetensors header {number}", _damage(random_.randrange(2**32), _change_header)


def _index_cases() -> Iterator[tuple[str, Callable[[Path], Any]]]:
    first = "model-00001-of-00003.safetensors"
    for name in ("../whole/model.safetensors", "/etc/passwd", "..", ".", "", "config.json", "a/b"):
        yield (
            f"index names {name.replace('/', '|')}",
            _json_change("model.safetensors.index.json", "weight_map", {"w": name}),
        )
    for value in (
        None,
        [],
        "x",
        {"w": 1},
        {"w": "gone.safetensors"},
        {"w": "\x00.safetensors"},
        {},
    ):
        yield "index map", _json_change("model.safetensors.index.json", "weight_map", value)
    yield "index partial", _json_change("model.safetensors.index.json", "weight_map", {"w": first})
    for name, make in _odd_files():
        yield f"index shard {name}", _replacement(first, make)
        yield f"index file {name}", _replacement("model.safetensors.index.json", make)


def _json_change(file: str, key: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        whole = json.loads((folder / file).read_text())
        write_json(folder / file, whole | {key: value})

    return change


def _part_change(part: str, value: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        whole = json.loads((folder / "tokenizer.json").read_text())
        inner = whole["model"] if part.startswith("model.") else whole
        inner[part.removeprefix("model.")] = value
        write_json(folder / "tokenizer.json", whole)

    return change


def _json_mutation(file: str, seed: int) -> Callable[[Path], None]:
    """Some value somewhere inside becomes an odd one, or goes."""

    def change(folder: Path) -> None:
        random_ = random.Random(seed)
        value = json.loads((folder / file).read_text())
        for _ in range(random_.choice((1, 1, 2))):
            _mutate(value, random_)
        write_json(folder / file, value)

    return change


def _mutate(value: Any, random_: random.Random) -> None:
    while True:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        if not keys:
            return
        key = random_.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and random_.random() < 0.75:
            value = value[key]
        elif random_.random() < 0.2:
            del value[key]
            return
        else:
            value[key] = random_.choice(ODD_JSON)
            return


def _content(file: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / file).write_bytes(content) and None


def _replacement(file: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    return change


def _damage(seed: int, how: Callable[[bytearray, random.Random], bytes]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(how(bytearray(path.read_bytes()), random.Random(seed)))

    return change


def _cut(content: bytearray, random_: random.Random) -> bytes:
    return content[: random_.randrange(len(content))]


def _flip(content: bytearray, random_: random.Random) -> bytes:
    length = int.from_bytes(content[:8], "little") + 8
    for _ in range(random_.choice((1, 2, 8))):
        content[random_.randrange(length)] ^= 1 << random_.randrange(8)
    return content


def _change_header(content: bytearray, random_: random.Random) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    _mutate(header, random_)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + content[8 + length :]


def _words(value: tuple[int, Any] | None) -> str:
    return "gone" if value is None else f"{value[0]} {str(value[1])[:12]!r}".replace("/", "|")
