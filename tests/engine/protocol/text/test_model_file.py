import hashlib

import pytest

from engine.protocol.text import model_file
from engine.protocol.text.model_file import ModelFile

DATA = bytes(range(256)) * 5000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(DATA)
    return path


def digest(path):
    with ModelFile(path) as file:
        return file.sha256()


def test_the_digest_is_the_sha256(path):
    assert digest(path) == hashlib.sha256(DATA).digest()


def test_progress_goes_to_the_end(path):
    seen = []
    with ModelFile(path) as file:
        file.sha256(seen.append)
    assert seen == [1 << 20, len(DATA)]


def test_an_unchanged_file_is_hashed_once(path, monkeypatch):
    first = digest(path)
    monkeypatch.setattr(ModelFile, "_computed_sha256", lambda *_: pytest.fail("hashed again"))
    assert digest(path) == first


@pytest.mark.parametrize("data", [b"x" + DATA[1:], DATA + b"x"], ids=["same length", "longer"])
def test_a_changed_file_is_hashed_again(path, data):
    digest(path)
    path.write_bytes(data)
    assert digest(path) == hashlib.sha256(data).digest()


def test_another_file_in_its_place_is_hashed_again(path, tmp_path):
    digest(path)
    other = tmp_path / "other"
    other.write_bytes(DATA[::-1])
    other.replace(path)
    assert digest(path) == hashlib.sha256(DATA[::-1]).digest()


def test_a_file_that_changes_while_it_is_hashed_is_not_remembered(path, monkeypatch):
    stamps = iter([(1,) * 5, (2,) * 5])
    monkeypatch.setattr(ModelFile, "_stamp", lambda _: next(stamps))
    digest(path)
    assert not model_file._digests.keys() & {(1,) * 5, (2,) * 5}
