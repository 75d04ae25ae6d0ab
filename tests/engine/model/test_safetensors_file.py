"""Our reading of .safetensors against the library's, and files that break its rules."""

import json
import struct

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import save, save_file

from engine.model.safetensors_file import SafetensorsFile
from engine.protocol.text.errors import ModelFileError


def container(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.fixture
def opened(tmp_path):
    def build(content):
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return SafetensorsFile(path)

    return build


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_reads_what_the_library_writes(tmp_path, dtype):
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape).to(dtype) for name, shape in (("b", (7, 3)), ("a", (5,)))}
    save_file(tensors, tmp_path / "w.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "w.safetensors")
    assert set(file.tensors) == {"a", "b"}
    matrix = file.tensor("b").matrix()
    assert matrix.shape == (7, 3)
    assert np.array_equal(matrix.float32(), tensors["b"].float().numpy())
    assert np.array_equal(file.tensor("a").vector(), tensors["a"].float().numpy())


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int32, torch.bool, torch.float8_e4m3fn]
)
def test_other_types_are_listed_and_named_when_asked_for(opened, dtype):
    file = opened(save({"w": torch.zeros(3).to(dtype), "x": torch.ones(2)}))
    assert file.tensors["w"].shape == (3,)
    with pytest.raises(ModelFileError, match=f"'w' is of type {file.tensors['w'].dtype}"):
        file.tensor("w")
    with pytest.raises(ModelFileError, match="'gone' is missing"):
        file.tensor("gone")
    assert np.array_equal(file.tensor("x").vector(), [1, 1])


def test_scalars_empty_tensors_and_padding_are_legal(opened):
    header = {"s": entry(shape=(), offsets=(0, 4)), "e": entry(shape=(0, 5), offsets=(4, 4))}
    file = opened(container(json.dumps(header).encode() + b"   ", bytes(4)))
    assert file.tensors["s"].shape == ()
    assert file.tensors["e"].nbytes == 0


def test_the_digest_is_that_of_the_file(opened):
    from hashlib import sha256

    content = save({"w": torch.zeros(600_000)})
    assert opened(content).sha256() == sha256(content).digest()


HOSTILE = {
    "empty": b"",
    "short": b"1234567",
    "no header": struct.pack("<Q", 0),
    "huge header": struct.pack("<Q", 2**63) + b"{}",
    "header past the end": struct.pack("<Q", 3) + b"{}",
    "not JSON": container(b"{"),
    "a list": container(b"[]"),
    "white space first": container(b" {}"),
    "not UTF-8": container(b'{"\xff": 1}'),
    "half a surrogate pair": container(json.dumps({"\ud800": entry()}).encode(), bytes(8)),
    "NaN": container(b'{"w": NaN}'),
    "nested": container(b'{"w":' + b"[" * 50_000),
    "many lists": container(b'{"w":[' + b"[]," * 2_200_000 + b"0]}"),
    "name twice": container(
        b'{"w": %b, "w": %b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)
    ),
    "no entry": container({"w": 3}),
    "no type": container({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "one key too many": container({"w": {**entry(), "x": 1}}, bytes(8)),
    "unknown type": container({"w": entry("F31")}, bytes(8)),
    "type is a list": container({"w": entry(["F32"])}, bytes(8)),
    "shape is a number": container({"w": {**entry(), "shape": 2}}, bytes(8)),
    "negative shape": container({"w": entry(shape=(-1, -2))}, bytes(8)),
    "fractional shape": container({"w": entry(shape=(2.0,))}, bytes(8)),
    "boolean shape": container({"w": entry(shape=(True, 2))}, bytes(8)),
    "huge shape": container({"w": entry(shape=(2**63, 2**63))}, bytes(8)),
    "wrapping shape": container({"w": entry(shape=(2**32, 2**32, 0))}, bytes(8)),
    "many dimensions": container({"w": entry(shape=(1,) * 9 + (2,))}, bytes(8)),
    "three offsets": container({"w": entry(offsets=(0, 8, 8))}, bytes(8)),
    "negative offset": container({"w": entry(offsets=(-8, 0))}, bytes(8)),
    "reversed offsets": container({"w": entry(offsets=(8, 0))}, bytes(8)),
    "huge offset": container({"w": entry(offsets=(2**64, 2**64 + 8))}, bytes(8)),
    "too few bytes": container({"w": entry(offsets=(0, 4))}, bytes(4)),
    "too many bytes": container({"w": entry(offsets=(0, 12))}, bytes(12)),
    "past the end": container({"w": entry()}, bytes(7)),
    "left over": container({"w": entry()}, bytes(9)),
    "hole": container({"v": entry(), "w": entry(offsets=(12, 20))}, bytes(20)),
    "overlap": container({"v": entry(), "w": entry(offsets=(4, 12))}, bytes(12)),
    "same bytes": container({"v": entry(), "w": entry()}, bytes(8)),
    "half a byte": container({"w": entry("F4", (3,), (0, 1))}, bytes(1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_breaks_a_rule_is_one_clear_error(opened, tmp_path, name):
    with pytest.raises(ModelFileError) as caught:
        opened(HOSTILE[name])
    assert str(caught.value).startswith(f"{tmp_path / 'model.safetensors'}: is not a readable")
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(opened):
    whole = save({"w": torch.zeros(3, 2), "v": torch.zeros(1)})
    for length in range(len(whole)):
        with pytest.raises(ModelFileError):
            opened(whole[:length])


def test_nothing_passes_that_the_library_refuses(opened):
    """One bit of a header is turned, each in its turn."""
    whole = bytearray(save({"w": torch.zeros(3, 2), "v": torch.zeros(1)}))
    header = int.from_bytes(whole[:8], "little") + 8
    for place in range(header * 8):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        try:
            file = opened(changed)
        except ModelFileError:
            continue
        read = dict(safetensors.deserialize(bytes(changed)))
        assert {name: list(info.shape) for name, info in file.tensors.items()} == {
            name: found["shape"] for name, found in read.items()
        }
