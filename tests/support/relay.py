"""A relay between two unix sockets that keeps everything said to the far side."""

import contextlib
import json
import socket
import socketserver
import threading
from pathlib import Path


class Relay(socketserver.ThreadingUnixStreamServer):
    """Listens on `here`, connects to `there` for each caller, and records what callers send."""

    def __init__(self, here: Path, there: Path) -> None:
        super().__init__(str(here), _Caller)
        self.there = there
        self.sent: list[bytearray] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop accepting and wait for the callers that are left."""
        self.shutdown()
        self.server_close()

    def requests(self, path: str) -> list[dict]:
        """The JSON bodies posted to `path`, in the order of their connections."""
        found = []
        for stream in list(self.sent):
            rest = bytes(stream)
            while b"\r\n\r\n" in rest:
                head, _, rest = rest.partition(b"\r\n\r\n")
                headers = dict(
                    line.lower().split(b": ", 1)
                    for line in head.split(b"\r\n")[1:]
                    if b": " in line
                )
                length = int(headers.get(b"content-length", 0))
                body, rest = rest[:length], rest[length:]
                if head.startswith(f"POST {path} ".encode()):
                    found.append(json.loads(body))
        return found


class _Caller(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Relay)
        record = bytearray()
        self.server.sent.append(record)
        with socket.socket(socket.AF_UNIX) as far:
            far.connect(str(self.server.there))
            back = threading.Thread(target=_copy, args=(far, self.request, bytearray()))
            back.start()
            _copy(self.request, far, record)
            back.join()


def _copy(source: socket.socket, target: socket.socket, keep: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            keep += data
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
