"""The engine's socket: private, short enough, and never somebody else's."""

import os
import socket
import stat

import pytest

from engine.server.listen import ListenError, TcpAddress, UnixAddress, bound


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a relative path stays short wherever the tests run
    return tmp_path.__class__("engine.sock")


def test_the_socket_is_private_whatever_the_umask(path):
    umask = os.umask(0)
    try:
        with bound(UnixAddress(path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(umask)
    assert not path.exists()


def test_binding_leaves_the_umask_alone(path):
    before = os.umask(0o022)
    os.umask(before)
    with bound(UnixAddress(path)):
        now = os.umask(0o022)
        os.umask(now)
    assert now == before


def test_a_dead_process_socket_is_replaced(path):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with bound(UnixAddress(path)) as listener:
        listener.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_living_socket_is_left_alone(path):
    with bound(UnixAddress(path)) as listener:
        listener.listen()
        with pytest.raises(ListenError, match="in use"), bound(UnixAddress(path)):
            pass
        assert path.exists()


def test_a_file_is_never_removed(path):
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"), bound(UnixAddress(path)):
        pass
    assert path.read_text() == "precious"


def test_a_successor_keeps_its_socket(path):
    with bound(UnixAddress(path)):
        path.unlink()
        successor = socket.socket(socket.AF_UNIX)
        successor.bind(str(path))
    assert path.exists()
    successor.close()


def test_a_long_path_is_refused_by_name(tmp_path):
    long = tmp_path / ("x" * 100)
    with pytest.raises(ListenError, match="longer than 99 bytes"), bound(UnixAddress(long)):
        pass


def test_tcp_listens_on_loopback_by_default():
    with bound(TcpAddress(port=0)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_taken_port_is_a_clear_error():
    with bound(TcpAddress(port=0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=str(port)), bound(TcpAddress(port=port)):
            pass
