"""Asks a running gateway over its admin socket, or over its admin listener's URL."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class NoGatewayError(Exception):
    """Nothing listens where a gateway was asked for."""


class BadAnswerError(Exception):
    """Something listens and does not answer as a gateway does."""


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Over the unix socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def url_connection(url: str) -> http.client.HTTPConnection:
    """A connection to a URL's host. Raises ValueError for what is no such URL."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"not an http or https URL: {url}")
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=TIMEOUT_S)


def ask(connection: http.client.HTTPConnection, target: str) -> Any:
    """The JSON of `GET target`. Raises NoGatewayError and BadAnswerError; closes the connection."""
    try:
        connection.request("GET", target)
        response = connection.getresponse()
        body = response.read(MAX_ANSWER_BYTES)
        if response.status != http.client.OK:
            raise BadAnswerError(f"status {response.status}")
        return json.loads(body)
    except (FileNotFoundError, ConnectionRefusedError, socket.gaierror) as error:
        raise NoGatewayError(str(error)) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BadAnswerError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
