import hashlib

import pytest

from engine.model import digest
from engine.model.digest import file_digest

DATA = bytes(range(256)) * 5000


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(DATA)
    return path


def test_it_is_the_sha256(file):
    assert file_digest(file) == hashlib.sha256(DATA).digest()


def test_progress_goes_to_the_end(file):
    seen = []
    assert file_digest(file, lambda *step: seen.append(step)) == hashlib.sha256(DATA).digest()
    assert seen[-1] == (len(DATA), len(DATA), "verifying")
    assert len(seen) == 2


def test_an_unchanged_file_is_read_once(file, monkeypatch):
    first = file_digest(file)
    monkeypatch.setattr(digest, "_computed", lambda *_: pytest.fail("read again"))
    assert file_digest(file) == first


@pytest.mark.parametrize("data", [b"x" + DATA[1:], DATA + b"x"], ids=["same length", "longer"])
def test_a_changed_file_is_read_again(file, data):
    file_digest(file)
    file.write_bytes(data)
    assert file_digest(file) == hashlib.sha256(data).digest()


def test_another_file_in_its_place_is_read_again(file, tmp_path):
    file_digest(file)
    other = tmp_path / "other"
    other.write_bytes(DATA[::-1])
    other.replace(file)
    assert file_digest(file) == hashlib.sha256(DATA[::-1]).digest()


def test_a_file_that_changes_while_it_is_read_is_not_remembered(file, monkeypatch):
    stamps = iter([(1,) * 5, (2,) * 5])
    monkeypatch.setattr(digest, "_stamp", lambda _: next(stamps))
    file_digest(file)
    assert file not in digest._known
