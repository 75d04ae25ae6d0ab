import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.ggml import GgmlType
from engine.protocol.text.gguf import GgufFile
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
    tokenizer_pairs,
)

VALID = container(
    [
        pair("a.text", STRING, "grüß"),
        pair("a.flag", BOOL, True),
        pair("a.list", ARRAY, (STRING, ["x", "", "yz"])),
        pair("a.floats", ARRAY, (F32, [0.5, -1.0])),
        pair("a.big", U64, 2**63),
    ],
    [tensor("w", (32, 2), 3, 0), tensor("b", (3,), 0, 64)],
    data=bytes(range(40)) + bytes(24) + struct.pack("<3f", 1, 2, 3),
)


@pytest.fixture
def opened(tmp_path):
    def build(content: bytes) -> GgufFile:
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        return GgufFile.open(path)

    return build


def stored(file, name):
    info = file.find(name)
    return file.file.read(info.offset, info.nbytes)


def test_reads_metadata_and_directory(opened):
    with opened(VALID) as file:
        assert dict(file.metadata) == {
            "a.text": "grüß",
            "a.flag": True,
            "a.list": ["x", "", "yz"],
            "a.floats": [0.5, -1.0],
            "a.big": 2**63,
        }
        assert file.tensors["w"].shape == (2, 32)
        assert file.tensors["w"].type is GgmlType.Q4_1
        assert stored(file, "w") == bytes(range(40))
        assert struct.unpack("<3f", stored(file, "b")) == (1, 2, 3)


def test_version_2_is_read(opened):
    assert opened(container([], [], version=2)).metadata == {}


def test_agrees_with_the_reference_writer(tmp_path):
    path = tmp_path / "ref.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_custom_alignment(64)
    writer.add_array("k.strings", ["eins", "zwei"])
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("w", weights)
    writer.add_tensor("h", weights.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile.open(path) as file:
        assert file.metadata["llama.context_length"] == 77
        assert file.metadata["k.strings"] == ["eins", "zwei"]
        for name, dtype in (("w", np.float32), ("h", np.float16)):
            read = np.frombuffer(stored(file, name), dtype).reshape(file.tensors[name].shape)
            assert np.array_equal(read, weights.astype(dtype))


def test_block_sizes_are_the_reference_ones():
    for kind in GgmlType:
        reference = gguf.constants.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        assert (kind.block_elements, kind.block_bytes) == reference


def test_the_default_model_is_whole(smollm2):
    with GgufFile.open(smollm2) as file:
        kinds = [info.type.name for info in file.tensors.values()]
        assert {kind: kinds.count(kind) for kind in set(kinds)} == {
            "Q4_1": 210,
            "F32": 61,
            "Q8_0": 1,
        }
        ends = max(info.offset + info.nbytes for info in file.tensors.values())
        assert ends == smollm2.stat().st_size


HUGE = 2**63
HOSTILE = {
    "other magic": (b"GGML" + bytes(40), "not a GGUF file"),
    "empty": (b"", "not a GGUF file"),
    "only magic": (b"GGUF", "truncated"),
    "version 1": (container([], [], version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "huge tensor count": (container([], [], counts=(HUGE, 0)), "more than its size"),
    "huge pair count": (container([], [], counts=(0, HUGE)), "more than its size"),
    "huge key": (container([struct.pack("<Q", HUGE) + bytes(64)], []), "claims"),
    "huge value": (
        container([text("k") + struct.pack("<IQ", STRING, 2**24) + bytes(64)], []),
        "past the end",
    ),
    "huge array": (
        container([text("k") + struct.pack("<IIQ", ARRAY, U32, HUGE)], []),
        "too many",
    ),
    "long array": (
        container([text("k") + struct.pack("<IIQ", ARRAY, U32, 2**20)], []),
        "past the end",
    ),
    "long array of strings": (
        container([text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**20) + bytes(64)], []),
        "past the end",
    ),
    "huge string in array": (
        container([text("k") + struct.pack("<IIQQ", ARRAY, STRING, 1, HUGE) + bytes(64)], []),
        "past the end",
    ),
    "array of arrays": (
        container([text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(64)], []),
        "unknown type 9",
    ),
    "unknown value type": (
        container([text("k") + struct.pack("<I", 99) + bytes(64)], []),
        "unknown type 99",
    ),
    "key twice": (container([pair("k", U32, 1), pair("k", U32, 2)], []), "appears twice"),
    "bad UTF-8": (container([pair("k", STRING, b"\xff\xfe")], []), "not valid UTF-8"),
    "bad UTF-8 in array": (
        container([pair("k", ARRAY, (STRING, ["ok", b"\xff"]))], []),
        "element 1 of array 'k'",
    ),
    "zero alignment": (container([pair("general.alignment", U32, 0)], []), "alignment"),
    "odd alignment": (container([pair("general.alignment", U32, 24)], []), "alignment"),
    "text alignment": (container([pair("general.alignment", STRING, "32")], []), "alignment"),
    "tensor twice": (
        container([], [tensor("w", (8,), 0, 0), tensor("w", (8,), 0, 32)], bytes(64)),
        "two tensors are named 'w'",
    ),
    "no dimensions": (container([], [tensor("w", (), 0, 0)], bytes(64)), "0 dimensions"),
    "many dimensions": (container([], [tensor("w", (1,) * 5, 0, 0)], bytes(64)), "5 dimensions"),
    "billions of dimensions": (
        container([], [text("w") + struct.pack("<I", 2**32 - 1) + bytes(64)]),
        "dimensions",
    ),
    "empty shape": (container([], [tensor("w", (0, 4), 0, 0)], bytes(64)), "impossible shape"),
    "overflowing shape": (
        container([], [tensor("w", (2**32, 2**32), 0, 0)], bytes(64)),
        "impossible shape",
    ),
    "unknown tensor type": (
        container([], [tensor("w", (8,), 250, 0)], bytes(64)),
        "unknown type 250",
    ),
    "broken block": (
        container([], [tensor("w", (33,), 3, 0)], bytes(64)),
        "not a multiple of the 32",
    ),
    "misaligned": (container([], [tensor("w", (8,), 0, 4)], bytes(64)), "misaligned"),
    "huge offset": (
        container([], [tensor("w", (8,), 0, 2**64 - 32)], bytes(64)),
        "past the end of the file",
    ),
    "short data": (
        container([], [tensor("w", (8,), 0, 0)], bytes(31)),
        "past the end of the file",
    ),
    "overlap": (
        container([], [tensor("v", (9,), 0, 0), tensor("w", (8,), 0, 32)], bytes(64)),
        "'v' and 'w' overlap",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_is_refused_in_one_sentence(opened, tmp_path, name):
    content, reason = HOSTILE[name]
    with pytest.raises(ModelFileError) as caught:
        opened(content)
    assert reason in caught.value.reason
    assert str(caught.value).startswith(str(tmp_path / "m.gguf"))
    assert "\n" not in str(caught.value)


def test_every_truncation_is_refused(opened):
    for length in range(len(VALID)):
        with pytest.raises(ModelFileError):
            opened(VALID[:length])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, 1),
)
def test_any_damage_is_read_or_refused(tmp_path_factory, damage, which):
    content = bytearray((VALID, container(tokenizer_pairs(), []))[which])
    for position, byte in damage:
        content[position % len(content)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    try:
        GgufFile.open(path).close()
    except ModelFileError as error:
        assert error.reason  # noqa: PT017 - a refusal is one of the two allowed outcomes


def test_missing_and_unserved_tensors_are_named(opened):
    file = opened(container([], [tensor("q", (32,), 9, 0)], bytes(40)))
    with pytest.raises(ModelFileError, match="'gone' is missing"):
        file.find("gone")
    with pytest.raises(ModelFileError, match="'q' is of type Q8_1, which is not supported"):
        file.find("q")


def test_missing_file_and_folder_are_named(tmp_path):
    for path in (tmp_path / "nothing.gguf", tmp_path):
        with pytest.raises(ModelFileError, match="cannot be read"):
            GgufFile.open(path)


def test_array_budget_counts_all_arrays(opened):
    one = pair("k0", ARRAY, (BOOL, [True] * 8))
    assert opened(container([one], [])).metadata["k0"] == [True] * 8
    claim = text("k1") + struct.pack("<IIQ", ARRAY, I32, 2**24)
    with pytest.raises(ModelFileError, match="too many"):
        opened(container([one, claim], []))
