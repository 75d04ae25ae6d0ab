"""Where one deployment keeps its files: database, keyring, event logs and sockets."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from tenancy.errors import DataDirError

MAX_SOCKET_PATH_BYTES = 100


def default_root() -> Path:
    """The data directory used where none is named."""
    return Path.home() / ".local" / "share" / "evenhand"


@dataclass(frozen=True, slots=True)
class DataDir:
    """The data directory of a deployment; `create` makes it readable by its owner only."""

    root: Path

    @property
    def database_path(self) -> Path:
        """The SQLite file used where no database URL is set."""
        return self.root / "evenhand.db"

    @property
    def database_url(self) -> str:
        """The URL of `database_path`."""
        return f"sqlite+aiosqlite:///{self.database_path.absolute()}"

    @property
    def keyring_path(self) -> Path:
        """The keyring used where no other file is named."""
        return self.root / "keyring.json"

    @property
    def event_log_path(self) -> Path:
        """The folder of the event logs, one folder in it for each pool."""
        return self.root / "fairness"

    @property
    def engine_socket(self) -> Path:
        """The local engine's socket. Raises DataDirError where the path is too long for one."""
        return self._socket("engine.sock")

    @property
    def gateway_socket(self) -> Path:
        """The gateway's admin socket. Raises DataDirError where the path is too long for one."""
        return self._socket("gateway.sock")

    def create(self) -> None:
        """Make the directory, mode 0700, where it is missing.

        Raises DataDirError, also where others could put a socket or database of theirs in it.
        """
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
            mode = stat.S_IMODE(self.root.stat().st_mode)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataDirError(f"cannot make the data directory {self.root}: {reason}") from error
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise DataDirError(
                f"{self.root}: mode is {mode:04o}: others must not write in the data directory"
                " (chmod 0700)"
            )

    def _socket(self, name: str) -> Path:
        path = self.root.absolute() / name
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
            raise DataDirError(
                f"the data directory's path is too long for a unix socket"
                f" (over {MAX_SOCKET_PATH_BYTES} bytes): {path}"
            )
        return path
