"""The requests a gateway holds, so that a drain can wait for them and cut what is left."""

import asyncio

from gateway.errors import ShuttingDown
from gateway.interrupt import ClientWatch


class ActiveRequests:
    """Requests that hold a reservation, and whether new ones may join them."""

    def __init__(self) -> None:
        self._watches: dict[str, ClientWatch] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    def __len__(self) -> int:
        return len(self._watches)

    def add(self, request_id: str, watch: ClientWatch) -> None:
        """A request entered its watched scope."""
        self._watches[request_id] = watch
        self._idle.clear()

    def discard(self, request_id: str) -> None:
        """The request is settled."""
        self._watches.pop(request_id, None)
        if not self._watches:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no request is left."""
        await self._idle.wait()

    def cut(self) -> None:
        """End every request now: the drain deadline has passed."""
        for watch in list(self._watches.values()):
            watch.fire(ShuttingDown("The server is shutting down.", retry_after_s=1.0))
