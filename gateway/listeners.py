"""The addresses of one gateway, bound before anything heavy is loaded.

Whoever binds knows at once that an address is free; nothing is accepted until a server listens.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.settings import Settings


class CannotListen(Exception):  # noqa: N818 - reads as what happened
    """An address cannot be bound; the message names it."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Bound sockets that do not listen yet."""

    public: socket.socket
    admin: socket.socket
    local: socket.socket


@contextlib.contextmanager
def bound(settings: Settings) -> Iterator[Listeners]:
    """All addresses of a gateway, bound. Raises CannotListen naming the one that cannot be."""
    gateway = settings.gateway
    with (
        _tcp(gateway.host, gateway.port) as public,
        _tcp(gateway.admin_host, gateway.admin_port) as admin,
        _unix(settings.admin_socket) as local,
    ):
        yield Listeners(public, admin, local)


@contextlib.contextmanager
def _tcp(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from error
    with bound:
        yield bound


@contextlib.contextmanager
def _unix(path: Path) -> Iterator[socket.socket]:
    """A socket of mode 0600 from its first moment; a dead gateway's is replaced."""
    _remove_dead(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.umask(mask)
    try:
        with bound:
            yield bound
    finally:
        path.unlink(missing_ok=True)


def _remove_dead(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise CannotListen(f"cannot listen on {path}: {error.strerror}") from error
    raise CannotListen(f"another gateway listens on {path}")
