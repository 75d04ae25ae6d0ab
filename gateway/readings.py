"""Figures that are not counted but read, from queues and from the process, at each collection."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from engine.protocol import metrics as m
from engine.protocol.instruments import Registry, Sample, SampleSource
from fairness.metrics import PoolSnapshot
from gateway.eventlog import EventLog
from gateway.queue import PoolQueue

MILLI = 1_000
BOUND_TERMS = ("slack", "jump", "refund", "floor_lag", "held_over")

PerTenant = Iterable[tuple[str, float]]


class PoolReadings:
    """The queues' own figures; `label_of` turns a tenant's id into its label."""

    def __init__(self, pools: Mapping[str, PoolQueue], label_of: Callable[[str], str]) -> None:
        self._pools = pools
        self._label_of = label_of

    def register(self, registry: Registry) -> None:
        """Declare the families and bind them to the queues."""
        registry.gauge(*m.QUEUE_DEPTH).callback(self._tenants(_queued))
        registry.gauge(*m.HEAD_AGE).callback(self._tenants(_head_age, max))
        registry.gauge(*m.VTC_COUNTER).callback(self._tenants(_counters))
        registry.counter(*m.SERVICE_UNITS).callback(self._tenants(PoolQueue.service_by_tenant))
        registry.gauge(*m.SERVICE_SPREAD).callback(self._whole(lambda s: s.spread / MILLI))
        registry.gauge(*m.SERVICE_SPREAD_BOUND).callback(
            self._whole(lambda s: s.spread_bound / MILLI)
        )
        registry.gauge(*m.SERVICE_SPREAD_BOUND_TERM).callback(self._terms)
        registry.gauge(*m.HEAD_DEADLINE).callback(self._tenants(_head_deadline, min))
        registry.gauge(*m.OVERTAKES_MAX).callback(self._whole(lambda s: s.overtakes_max))
        registry.counter(*m.URGENT_GRANTS).callback(self._whole(lambda s: s.urgent_grants))
        registry.gauge(*m.PINNED).callback(self._whole(lambda s: float(s.pinned is not None)))
        registry.gauge(*m.JAIN_INDEX).callback(self._whole(lambda s: s.jain))
        registry.gauge(*m.REPLICA_INFLIGHT).callback(self._in_flight)

    def _tenants(
        self, read: Callable[[PoolQueue], PerTenant], join: Callable[[list[float]], float] = sum
    ) -> SampleSource:
        """One sample per label; what tenants beyond the cap say is joined."""
        return lambda: self._labelled(read, join)

    def _labelled(
        self, read: Callable[[PoolQueue], PerTenant], join: Callable[[list[float]], float]
    ) -> Iterator[Sample]:
        for pool, queue in self._pools.items():
            said: dict[str, list[float]] = {}
            for tenant, number in read(queue):
                said.setdefault(self._label_of(tenant), []).append(number)
            for label, numbers in said.items():
                yield (pool, label), join(numbers)

    def _whole(self, read: Callable[[PoolSnapshot], float]) -> SampleSource:
        return lambda: (((pool,), read(q.snapshot())) for pool, q in self._pools.items())

    def _terms(self) -> Iterator[Sample]:
        for pool, queue in self._pools.items():
            bound = queue.snapshot().bound
            for term in BOUND_TERMS:
                yield (pool, term), getattr(bound, term) / MILLI

    def _in_flight(self) -> Iterator[Sample]:
        for queue in self._pools.values():
            for replica in queue.snapshot().replicas:
                yield (replica.replica,), replica.in_flight


def _queued(queue: PoolQueue) -> PerTenant:
    return ((one.tenant, one.queued) for one in queue.snapshot().tenants)


def _head_age(queue: PoolQueue) -> PerTenant:
    now = queue.now()
    return (
        (one.tenant, now - one.head_enqueued_at)
        for one in queue.snapshot().tenants
        if one.head_enqueued_at is not None
    )


def _head_deadline(queue: PoolQueue) -> PerTenant:
    now = queue.now()
    return (
        (one.tenant, one.head_deadline - now)
        for one in queue.snapshot().tenants
        if one.head_deadline is not None
    )


def _counters(queue: PoolQueue) -> PerTenant:
    return ((one.tenant, one.counter / MILLI) for one in queue.snapshot().tenants)


def register_logs(registry: Registry, logs: Mapping[str, EventLog]) -> None:
    """Declare what the event logs say of themselves, by pool."""
    registry.gauge(*m.JOURNAL_BACKLOG).callback(
        lambda: [((), sum(log.backlog for log in logs.values()))]
    )
    registry.counter(*m.LOG_BYTES).callback(
        lambda: (((pool,), log.bytes_written) for pool, log in logs.items())
    )


def register_process(
    registry: Registry,
    *,
    revision: Callable[[], int],
    store_up: Callable[[], bool],
    degraded: Callable[[], Mapping[str, bool]],
    replicas_up: Callable[[], Iterable[tuple[str, bool]]],
) -> None:
    """Declare what the process says of itself."""
    registry.gauge(*m.CONFIG_VERSION).callback(lambda: [((), revision())])
    registry.gauge(*m.STORE_UP).callback(lambda: [(("database",), float(store_up()))])
    registry.gauge(*m.DEGRADED).callback(
        lambda: (((reason,), float(holds)) for reason, holds in degraded().items())
    )
    registry.gauge(*m.REPLICA_UP).callback(
        lambda: (((name,), float(up)) for name, up in replicas_up())
    )
