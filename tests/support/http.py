"""Raw HTTP over a socket, for what a well-behaved client library will not send."""

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """One parsed response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def connect(url: str, timeout_s: float = 30) -> socket.socket:
    """A TCP connection to the server of `url`."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout_s)


def request_bytes(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """One HTTP/1.1 request that asks the server to close afterwards."""
    lines = [f"{method} {path} HTTP/1.1", "host: evenhand.test", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def send(url: str, raw: bytes, timeout_s: float = 60) -> Answer:
    """Send bytes as they are and read the one response to its end."""
    with connect(url, timeout_s) as sock:
        received = b""
        # A server may refuse and close before it has read everything.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(raw)
        with contextlib.suppress(ConnectionResetError):
            while chunk := sock.recv(65_536):
                received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    status_line, *header_lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in header_lines)
    }
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunk(body)
    return Answer(int(status_line.split()[1]), headers, body)


def _unchunk(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        whole, body = whole + rest[:length], rest[length + 2 :]
    return whole
