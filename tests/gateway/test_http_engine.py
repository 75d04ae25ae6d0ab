"""The engine client: which failures speak of the engine and which of ourselves."""

import contextlib
import resource
import socket

import pytest

from gateway.engines.http import HttpEngine
from gateway.engines.port import EngineBroken, EngineUnreachable


@contextlib.contextmanager
def no_descriptors_left():
    """As when clients hold all that the process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest.fileno(), hard))
    try:
        with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
            while True:
                opened.enter_context(socket.socket())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_shortage_of_our_own_does_not_make_a_replica_lost(tmp_path, kind):
    address = str(tmp_path / "none") if kind == "unix" else "http://127.0.0.1:9"
    engine = HttpEngine(address, read_timeout_s=1)
    try:
        with pytest.raises(EngineUnreachable):
            await engine.capacity()
        with no_descriptors_left(), pytest.raises(EngineBroken):
            await engine.capacity()
    finally:
        await engine.close()
