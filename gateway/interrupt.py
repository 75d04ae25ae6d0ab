"""Stop the code inside a scope from outside it, with a reason, as `asyncio.timeout` does with time.

Used for a client that left, a replica that was lost and a drain that ran out: each is something
that happens to a request while it waits for something else.
"""

import asyncio
from types import TracebackType
from typing import Self

from gateway.guard import ClientGone, Receive


class Interrupt:
    """A scope of one task; `fire` makes its current await fail and the scope raise the reason.

    `fire` must not be called by the task itself. The first reason wins; after the scope it does
    nothing.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._reason: Exception | None = None

    def fire(self, reason: Exception) -> None:
        """End the scope with `reason`; idempotent."""
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        if self._reason is None or task is None:
            return
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise self._reason from error


class ClientWatch(Interrupt):
    """The scope of a request whose body was read: a disconnect raises `ClientGone` inside it."""

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        await super().__aexit__(kind, error, trace)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.fire(ClientGone())
