"""The requests that wait to run: who may start next, who may pass whom, and how many may wait.

Preempted requests come first, by age, and are never passed. Then come arrivals in order, with one
exception: one that does not fit yet may be passed by later ones that do, a limited number of
times. After that it is a barrier, so that the memory it needs gathers.

The caps count arrivals that were never admitted; a preempted request was accepted long ago and
always finds its place. A family of samples counts each sample, but its prompt's tokens once.
"""

from bisect import insort
from collections.abc import Iterator
from itertools import islice
from typing import Final

from engine.core.config import CoreConfig
from engine.core.errors import QueueFull
from engine.core.request import Request, RequestStatus
from engine.core.samples import Family

MAX_REFUSALS: Final = 8
"""How many arrivals that do not fit one step looks at: it costs the same in any queue."""


class WaitingQueue:
    """First come, first served, except for victims and bounded passing. Adding takes O(1)."""

    def __init__(self, config: CoreConfig) -> None:
        self._max_requests = config.max_waiting_requests
        self._max_tokens = config.max_waiting_tokens
        self._max_passes = config.max_passes
        # Of the families that a step looks at, each one that is not refused has a running sample.
        self._max_families = config.max_num_seqs + MAX_REFUSALS
        self._families: dict[Family, None] = {}  # those of which a sample was never admitted
        self._preempted: list[Request] = []
        self._num_arrivals = 0
        self._num_tokens = 0

    def __len__(self) -> int:
        return self._num_arrivals + len(self._preempted)

    def add(self, family: Family) -> None:
        """Append all samples of a family. Raises QueueFull, taking none, at either cap."""
        num_requests = self._num_arrivals + len(family.waiting)
        num_tokens = self._num_tokens + family.num_prompt_tokens
        if num_requests > self._max_requests:
            raise QueueFull("requests", self._max_requests)
        if num_tokens > self._max_tokens:
            raise QueueFull("tokens", self._max_tokens)
        self._families[family] = None
        self._num_arrivals = num_requests
        self._num_tokens = num_tokens

    def requeue(self, request: Request) -> None:
        """Put a preempted request back, before every arrival, among victims by age."""
        insort(self._preempted, request, key=lambda waiting: waiting.arrival)

    def remove(self, request: Request) -> None:
        """Take out a request that waits, from any place; its status still says which."""
        if request.status is RequestStatus.PREEMPTED:
            self._preempted.remove(request)
            return
        family = request.family
        family.waiting.remove(request)
        self._num_arrivals -= 1
        if not family.waiting:
            del self._families[family]
            self._num_tokens -= len(request.prompt_token_ids)

    def candidates(self) -> Iterator[Request]:
        """Who may start now, in order; to be consumed once per step.

        The caller starts each one that fits, or leaves it waiting, which refuses it. A refused
        victim ends the iteration, as does a refused arrival that was passed often enough. A sample
        that waits for its prompt is left out: to pass it is not counted.
        """
        for victim in tuple(self._preempted):
            yield victim
            if victim.status is RequestStatus.PREEMPTED:
                return
        refused: list[Family] = []
        for family in tuple(islice(self._families, self._max_families)):
            while (sample := family.ready()) is not None:
                yield sample
                if sample.status is RequestStatus.WAITING:
                    refused.append(family)
                elif sample.status is RequestStatus.RUNNING:
                    for passed in refused:
                        passed.num_passes += 1
                if self._must_stop(refused):
                    return
                if sample.status is RequestStatus.WAITING:
                    break

    def _must_stop(self, refused: list[Family]) -> bool:
        return len(refused) >= MAX_REFUSALS or any(
            family.num_passes >= self._max_passes for family in refused
        )
