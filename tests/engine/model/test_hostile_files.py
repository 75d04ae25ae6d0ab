"""Hundreds of broken and hostile models: each loads or is refused in one sentence.

They are loaded one after another in a process of their own, by what an engine loads models with: so
that a crash, a hang or memory without bound is seen, and seen to be whose.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.protocol.text.errors import ModelFileError
from engine.protocol.text.gguf import GgufFile
from engine.protocol.text.model import load_text_model
from tests.support.hostile_cases import write_cases
from tests.support.hostile_models import gguf_bytes

# What a load may take besides a multiple of its files, and address space, which is more.
BASE = 24 << 20
TIMES = 16
ADDRESS_SPACE = 1 << 30


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of every case its path, what came of it, and how much memory it took."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = write_cases(folder)
    listed = tmp_path_factory.mktemp("list") / "paths"
    listed.write_text("\n".join(map(str, paths)))
    command = [sys.executable, "-m", "tests.support.load_models", str(ADDRESS_SPACE), str(listed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    begun = [line["begins"] for line in lines if "begins" in line]
    assert done.returncode == 0, f"{begun[-1:]}: {done.returncode} {done.stderr[-2000:]}"
    assert begun == [str(path) for path in paths]
    return list(zip(paths, (line for line in lines if "begins" not in line), strict=True))


def test_nothing_breaks(outcomes):
    broken = [(path.name, result["broken"]) for path, result in outcomes if "broken" in result]
    assert broken == []
    assert len(outcomes) >= 750


def test_whole_models_load(outcomes):
    assert [result.get("loaded") for _, result in outcomes[:3]] == [True] * 3


def test_most_are_refused_and_some_still_load(outcomes):
    refused = sum("refused" in result for _, result in outcomes)
    assert 0.75 * len(outcomes) < refused < 0.95 * len(outcomes)


def test_a_refusal_is_one_sentence_that_names_the_file(outcomes):
    for path, result in outcomes:
        if "refused" in result:
            file, _, reason = result["refused"].partition(": ")
            assert file == result["file"]
            assert Path(file) == path or Path(file).parent == path
            assert reason
            assert reason.isprintable()
            assert len(reason) <= 400


def test_memory_is_bounded_by_the_size_of_the_files(outcomes):
    for path, result in outcomes:
        allowed = BASE + TIMES * size_of(path)
        assert result["grown"] <= allowed, f"{path.name}: {result['grown']} of {allowed}"


def size_of(path):
    """Bytes on disk: of a sparse file those that are there."""
    files = [path, *(path.iterdir() if path.is_dir() and not path.is_symlink() else [])]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


def test_a_file_cut_short_while_it_is_read_is_one_clear_error(tmp_path):
    """A mapped one would kill the process: so no file of a model is mapped."""
    path = tmp_path / "shrinking.gguf"
    whole = gguf_bytes()
    path.write_bytes(whole)
    with GgufFile.open(path) as file:
        info = file.find("blk.0.ffn_up.weight")
        path.write_bytes(whole[:5000])
        with pytest.raises(ModelFileError, match="became shorter"):
            file.file.read(info.offset, info.nbytes)


def test_a_file_that_changes_all_the_time_loads_or_is_refused(tmp_path):
    path = tmp_path / "changing.gguf"
    whole = gguf_bytes()
    path.write_bytes(whole)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for length in (5000, 40, len(whole), 12_000):
                with path.open("r+b") as file:
                    file.truncate(length)
                    file.write(whole[:length])
                time.sleep(0)

    writer = threading.Thread(target=change)
    writer.start()
    try:
        for _ in range(200):
            try:
                load_text_model(path)
            except ModelFileError as error:
                assert error.reason  # noqa: PT017 - a refusal is one of the two allowed outcomes
    finally:
        stop.set()
        writer.join()
