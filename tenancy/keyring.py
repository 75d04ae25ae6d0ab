"""The keyring: one 0600 file of independent random 32-byte keys, one per purpose.

One key is never used for two purposes. A file that others can read, a secret that is short, looks
like a sample or equals another is refused, because such a deployment would only seem safe.
"""

import binascii
import json
import os
import secrets
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from tenancy.errors import KeyringError

NAMES = ("cache_ns", "pepper", "kek", "audit", "router")
KEY_BYTES = 32

_FORMAT = 1
_MAX_FILE_BYTES = 65_536
_MIN_DISTINCT_BYTES = 16  # 32 random bytes have fewer about once in 10^11 files


@dataclass(frozen=True, slots=True)
class Secret:
    """One key and its version; the bytes stay out of `repr`."""

    version: int
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keyring:
    """All keys of a deployment, its id, and the epoch of its cache namespaces."""

    deployment_id: str
    epoch: int
    cache_ns: Secret
    pepper: Secret
    kek: Secret
    audit: Secret
    router: Secret

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check the file. Raises KeyringError naming the file and what is wrong."""
        try:
            return cls(**_parse(_read(path)))
        except FileNotFoundError as error:
            raise KeyringError(
                f"{path}: there is no keyring; `evenhand migrate` makes one for a new deployment,"
                " an older one needs its own back"
            ) from error
        except OSError as error:
            raise KeyringError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise KeyringError(f"{path}: {error}") from error

    @classmethod
    def create(cls, path: Path) -> Self:
        """A new keyring; its file appears whole or not at all. Raises KeyringError if it exists."""
        document = {
            "format": _FORMAT,
            "deployment_id": str(uuid4()),
            "epoch": 1,
            "keys": {
                name: {"version": 1, "secret": b64encode(secrets.token_bytes(KEY_BYTES)).decode()}
                for name in NAMES
            },
        }
        try:
            _write_new(path, json.dumps(document, indent=2).encode() + b"\n")
        except FileExistsError as error:
            raise KeyringError(f"{path}: exists already") from error
        except OSError as error:
            raise KeyringError(f"{path}: {error.strerror or error}") from error
        return cls.load(path)

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """The file's keyring, made first where there is none; two that start at once agree."""
        try:
            return cls.create(path)
        except KeyringError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
        return cls.load(path)


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise ValueError(f"mode is {mode:04o}: others must have no access (chmod 0600)")
        if status.st_uid not in {0, os.geteuid()}:
            raise ValueError(f"owned by another user (uid {status.st_uid})")
        raw = file.read(_MAX_FILE_BYTES + 1)
    if len(raw) > _MAX_FILE_BYTES:
        raise ValueError("too large for a keyring")
    return raw


def _write_new(path: Path, raw: bytes) -> None:
    """Write beside the target, then link: the name is taken atomically and never overwritten."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
        try:
            os.fchmod(file.fileno(), 0o600)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _no_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} stands there twice")
        found[name] = value
    return found


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw, object_pairs_hook=_no_duplicates)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("not a JSON document") from None  # its text may hold secrets
    document = _fields(document, ("format", "deployment_id", "epoch", "keys"), "the keyring")
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']!r} is not {_FORMAT}")
    deployment_id = document["deployment_id"]
    if not isinstance(deployment_id, str) or not deployment_id:
        raise ValueError("deployment_id must be a non-empty text")
    keys = _fields(document["keys"], NAMES, "keys")
    found = {name: _secret(name, keys[name]) for name in NAMES}
    if len({secret.value for secret in found.values()}) < len(NAMES):
        raise ValueError("two keys are equal: every purpose needs its own")
    return {"deployment_id": deployment_id, "epoch": _count(document["epoch"], "epoch"), **found}


def _fields(value: object, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError(f"{what} must have exactly the fields {', '.join(names)}")
    return value


def _count(value: object, what: str) -> int:
    if type(value) is not int or not 0 < value < 2**63:
        raise ValueError(f"{what} must be a positive whole number")
    return value


def _secret(name: str, value: object) -> Secret:
    entry = _fields(value, ("version", "secret"), f"key {name}")
    text = entry["secret"]
    try:
        secret = b64decode(text, validate=True) if isinstance(text, str) else b""
    except binascii.Error:
        raise ValueError(f"key {name} is not base64") from None
    if len(secret) != KEY_BYTES:
        raise ValueError(f"key {name} must be {KEY_BYTES} bytes, not {len(secret)}")
    if _looks_made_up(secret):
        raise ValueError(f"key {name} looks like a sample: it must be random")
    return Secret(version=_count(entry["version"], f"version of key {name}"), value=secret)


def _looks_made_up(secret: bytes) -> bool:
    steps = {(after - before) % 256 for before, after in pairwise(secret)}
    is_text = all(0x20 <= byte < 0x7F for byte in secret)
    return len(set(secret)) < _MIN_DISTINCT_BYTES or len(steps) == 1 or is_text
