"""The requests that wait to run: preempted ones first, then arrivals in order, within two caps.

The caps count arrivals that were never admitted; a preempted request was accepted long ago and
always finds its place. Every operation but `requeue` is O(1) in the number of arrivals.
"""

from bisect import insort
from collections import OrderedDict

from engine.core.errors import QueueFull
from engine.core.request import Request, RequestStatus


class WaitingQueue:
    """First come, first served, except that a victim resumes before later arrivals."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._arrivals: OrderedDict[str, Request] = OrderedDict()
        self._preempted: list[Request] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._arrivals) + len(self._preempted)

    def add(self, request: Request) -> None:
        """Append an arrival. Raises QueueFull, taking nothing, at either cap."""
        num_tokens = self._num_tokens + len(request.prompt_token_ids)
        if len(self._arrivals) >= self._max_requests:
            raise QueueFull("requests", self._max_requests)
        if num_tokens > self._max_tokens:
            raise QueueFull("tokens", self._max_tokens)
        self._arrivals[request.request_id] = request
        self._num_tokens = num_tokens

    def requeue(self, request: Request) -> None:
        """Put a preempted request back, before every arrival, among victims by age."""
        insort(self._preempted, request, key=lambda waiting: waiting.arrival)

    def first(self) -> Request | None:
        """Who runs next, or None."""
        if self._preempted:
            return self._preempted[0]
        return next(iter(self._arrivals.values()), None)

    def remove(self, request: Request) -> None:
        """Take out a request that waits, from any place."""
        if request.status is RequestStatus.PREEMPTED:
            self._preempted.remove(request)
        else:
            del self._arrivals[request.request_id]
            self._num_tokens -= len(request.prompt_token_ids)
