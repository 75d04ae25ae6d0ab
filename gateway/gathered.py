"""A transport that lets what is written in one turn of the event loop leave in one piece.

A server writes head and body of a response apart, and uvloop hands each write to the kernel at
once: two system calls for us, and two wake-ups of the reader, for one short answer.
"""

import asyncio
from typing import Any


class GatheredWrites(asyncio.Transport):
    """Delegates to `transport`; writes wait for the end of the current turn of the loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._waiting: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand `data` on with all that is written in this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(bytes(data))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._transport.write(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def close(self) -> None:
        """Close once everything written has left."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits is lost."""
        self._waiting.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Receive nothing for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)
