"""Counts what a pool's dispatcher decided beside its grants, and logs each deadline it missed."""

import logging
from collections.abc import Iterable

from fairness.events import Effect, Expired, Missed, Passed, Refused
from gateway import drops
from gateway.telemetry import GatewayMetrics

log = logging.getLogger(__name__)


class Decisions:
    """Of one pool. Tenants are logged by their metrics' label; requests by our own random id."""

    def __init__(self, pool: str, metrics: GatewayMetrics) -> None:
        self._pool = pool
        self._metrics = metrics

    def note(self, effects: Iterable[Effect]) -> None:
        """Take note of what followed from one event."""
        for effect in effects:
            match effect:
                case Expired() | Refused():
                    self._metrics.dropped(self._pool, drops.reason_of(effect))
                case Passed(reason=reason):
                    self._metrics.passed(self._pool, reason.value)
                case Missed():
                    self._missed(effect)
                case _:
                    pass  # the snapshot shows it

    def _missed(self, effect: Missed) -> None:
        self._metrics.missed_deadline(self._pool, effect.reason.value)
        log.info(
            "pool %s: request %s of tenant %s was not granted by its deadline: %s",
            self._pool,
            effect.request,
            self._metrics.label_of(effect.tenant),
            effect.reason.value,
        )
