"""Where an engine listens: a unix socket nobody else may open, or a TCP address.

The socket is bound here, at 0600, because uvicorn would make its own world-writable.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_PATH_BYTES: Final = 99
_PROBE_TIMEOUT_S: Final = 1.0


class ListenError(Exception):
    """The address cannot be used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file, readable and writable by its owner only."""

    path: Path


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and port; port 0 takes a free one. Loopback unless somebody says otherwise."""

    host: str = "127.0.0.1"
    port: int = 8100


Address = UnixAddress | TcpAddress


@contextlib.contextmanager
def bound(address: Address) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet; closed, and its file removed, in the end.

    Raises ListenError.
    """
    if isinstance(address, TcpAddress):
        with _bind_tcp(address) as listener:
            yield listener
        return
    with _bind_unix(address.path) as listener:
        ours = address.path.lstat()
        try:
            yield listener
        finally:
            _remove_own(address.path, ours)


def _bind_tcp(address: TcpAddress) -> socket.socket:
    where = f"{address.host}:{address.port}"
    try:
        family, kind, proto, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ListenError(f"cannot listen on {where}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {where}: {error.strerror}") from error
    return listener


def _bind_unix(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ListenError(
            f"the socket path {path} is longer than {MAX_PATH_BYTES} bytes; choose a shorter one"
        )
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.umask(umask)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that a dead process left; never a file, never a socket that answers."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ListenError(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ListenError(f"{path} exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ListenError(f"{path} is in use: {error.strerror}") from error
        else:
            raise ListenError(f"{path} is in use: another process answers there")


def _remove_own(path: Path, ours: os.stat_result) -> None:
    """Remove the socket file if it is still the one bound here, not a successor's."""
    with contextlib.suppress(FileNotFoundError):
        now = path.lstat()
        if (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino):
            path.unlink()
