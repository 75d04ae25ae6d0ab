"""What is left of a tenant's limits, asked of the running gateway over its admin socket."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from uuid import UUID

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 65_536


class LeftUnavailableError(Exception):
    """A gateway runs but did not say what is left."""


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Over the unix socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


def ask(path: Path, tenant_id: UUID) -> dict[str, Any] | None:
    """What the gateway answers, or None where none runs. Raises LeftUnavailableError.

    Requests and tokens left this minute by limit (null: not limited), and the requests `queued` and
    `running` now.
    """
    connection = _SocketConnection(path)
    try:
        connection.request("GET", f"/left?tenant={tenant_id}")
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
        answer = json.loads(body) if response.status == http.client.OK else None
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LeftUnavailableError(f"the gateway does not answer: {error}") from error
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise LeftUnavailableError(
            f"the gateway gives no figures for this tenant (status {response.status})"
        )
    return answer
