"""Watches one pool's replicas: polls their capacity, and says when one is there or lost.

A replica that takes no connection is lost at once; one that is silent or answers nonsense is lost
after `failures` polls in a row. Either comes back with its next good answer.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from fairness.types import ReplicaCapacity
from gateway.engines.port import EngineClient, EngineError, EngineUnreachable

log = logging.getLogger(__name__)


class ReplicaMonitor:
    """Owns the polling of every replica of one pool."""

    def __init__(
        self,
        engines: Mapping[str, EngineClient],
        *,
        interval_s: float,
        failures: int,
        on_up: Callable[[str, ReplicaCapacity], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._engines = engines
        self._interval_s = interval_s
        self._failures = failures
        self._on_up = on_up
        self._on_lost = on_lost
        self._misses = dict.fromkeys(engines, failures)
        self.max_model_len: int | None = None

    @property
    def up(self) -> dict[str, bool]:
        """Whether each replica answers."""
        return {name: misses < self._failures for name, misses in self._misses.items()}

    def suspect(self, name: str) -> None:
        """A request could not connect: the replica is lost until it answers again."""
        self._miss(name, self._failures)

    async def poll(self, name: str) -> None:
        """Ask one replica once."""
        try:
            capacity = await self._engines[name].capacity()
        except EngineUnreachable:
            self._miss(name, self._failures)
        except EngineError as error:
            log.debug("replica %s: %s", name, error)
            self._miss(name, 1)
        else:
            if not self.up[name]:
                log.info("replica %s is up: %s", name, capacity.replica)
            self._misses[name] = 0
            self.max_model_len = capacity.max_model_len
            self._on_up(name, capacity.replica)

    async def run(self) -> None:
        """Poll every replica for ever, each on its own, so that a slow one delays no other."""
        async with asyncio.TaskGroup() as group:
            for name in self._engines:
                group.create_task(self._watch(name))

    async def _watch(self, name: str) -> None:
        while True:
            await self.poll(name)
            await asyncio.sleep(self._interval_s)

    def _miss(self, name: str, count: int) -> None:
        was_up = self.up[name]
        self._misses[name] = min(self._failures, self._misses[name] + count)
        if was_up and not self.up[name]:
            log.warning("replica %s is lost", name)
            self._on_lost(name)
