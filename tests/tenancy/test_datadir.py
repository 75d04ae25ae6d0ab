"""The data directory."""

import stat
from pathlib import Path

import pytest

from tenancy.datadir import DataDir, default_root
from tenancy.errors import DataDirError


def test_paths():
    data = DataDir(Path("/data"))
    assert data.database_url == "sqlite+aiosqlite:////data/evenhand.db"
    assert data.keyring_path == Path("/data/keyring.json")
    assert data.engine_socket == Path("/data/engine.sock")
    assert data.gateway_socket == Path("/data/gateway.sock")
    assert default_root() == Path.home() / ".local" / "share" / "evenhand"


def test_create_is_private_and_repeatable(tmp_path):
    data = DataDir(tmp_path / "a" / "b")
    data.create()
    data.create()
    assert stat.S_IMODE(data.root.stat().st_mode) == 0o700


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirError, match="file"):
            DataDir(root).create()


def test_a_path_too_long_for_sockets_is_said(tmp_path):
    data = DataDir(tmp_path / ("x" * 100))
    with pytest.raises(DataDirError, match="too long"):
        _ = data.engine_socket
    with pytest.raises(DataDirError, match="too long"):
        _ = data.gateway_socket


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_directory_that_others_write_in_is_refused(tmp_path, mode):
    """They could set a socket of theirs where the gateway looks for its engine."""
    tmp_path.chmod(mode)
    with pytest.raises(DataDirError, match="others must not write"):
        DataDir(tmp_path).create()
