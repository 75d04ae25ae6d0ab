"""A relay between two unix sockets that keeps everything said to the far side."""

import contextlib
import json
import socket
import threading
from pathlib import Path


class Relay:
    """Listens on `here`, connects to `there` for each caller, and records what callers send."""

    def __init__(self, here: Path, there: Path) -> None:
        self._there = there
        self._sent: list[bytearray] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(here))
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def requests(self, path: str) -> list[dict]:
        """The JSON bodies posted to `path`, in the order of their connections."""
        found = []
        for stream in list(self._sent):
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

    def close(self) -> None:
        """Stop accepting; connections end with their callers."""
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._server.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._there))
                record = bytearray()
                self._sent.append(record)
                for source, target, keep in ((caller, far, record), (far, caller, bytearray())):
                    threading.Thread(
                        target=self._pump, args=(source, target, keep), daemon=True
                    ).start()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, keep: bytearray) -> None:
        """Copy one way until either end is gone; the copy the other way closes `target`."""
        with source:
            with contextlib.suppress(OSError):
                while data := source.recv(65_536):
                    keep += data
                    target.sendall(data)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)
