"""What a decision of the fair queue costs, in microseconds, and what an idle tenant costs in bytes.

Every tenant is backlogged throughout: each keeps two requests waiting, before a full replica of 64
slots. `end` is a request's last report together with the grant it makes room for, `report` the same
while the replica drains and nobody is granted, `grant` the difference. `emit` charges a flush of
tokens, `enqueue` adds a request.
"""

import gc
import time
import tracemalloc
from pathlib import Path
from statistics import median

from fairness.dispatcher import Dispatcher
from fairness.events import (
    Emitted,
    Enqueued,
    Finished,
    Granted,
    Input,
    ReplicaDrained,
    ReplicaUp,
)
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms

TENANTS = (10, 1_000, 10_000)
GRANTS = 3_000
ROUNDS = 25
IDLE_TENANTS = 10_000
TERMS = TenantTerms(1_000, 16, 2_048, 512)
CAPACITY = ReplicaCapacity(64, 1 << 20)
PROMPT, OUTPUT = 100, 64


class Load:
    """A pool in which every tenant waits, always."""

    def __init__(self, num_tenants: int) -> None:
        self.dispatcher = Dispatcher(PoolConfig(ttl_s=599.0), VtcPolicy())
        self.now = 0.0
        self.running: list[Granted] = []
        self.made = 0
        self.apply(ReplicaUp(0.0, "r", CAPACITY))
        for number in range(CAPACITY.slots + 1 + 2 * num_tenants):
            self.enqueue(f"tenant-{number % num_tenants}")

    def apply(self, event: Input) -> float:
        """Seconds the dispatcher took; grants are remembered."""
        began = time.perf_counter()
        effects = self.dispatcher.apply(event)
        took = time.perf_counter() - began
        self.running += [effect for effect in effects if isinstance(effect, Granted)]
        return took

    def enqueue(self, tenant: str) -> float:
        """One more request of the tenant waits."""
        self.made += 1
        return self.apply(Enqueued(self.now, f"q{self.made}", tenant, TERMS, PROMPT, OUTPUT))

    def turn(self) -> dict[str, float]:
        """The oldest running request emits, ends, and is followed by one of its tenant's."""
        self.now += 0.01
        grant = self.running.pop(0)
        return {
            "emit": self.apply(Emitted(self.now, grant.request, OUTPUT // 2)),
            "end": self.apply(Finished(self.now, grant.request, OUTPUT)),
            "enqueue": self.enqueue(grant.tenant),
        }

    def reports(self) -> list[float]:
        """The replica drains and empties, then fills again: seconds per end without a grant."""
        self.apply(ReplicaDrained(self.now, "r"))
        ended, self.running = self.running, []
        took = [self.apply(Finished(self.now, grant.request, OUTPUT)) for grant in ended]
        self.apply(ReplicaUp(self.now, "r", CAPACITY))
        for grant in ended:
            self.enqueue(grant.tenant)
        return took


def run(_model: Path) -> dict[str, object]:
    """Medians over many grants, by backlogged tenants; bytes per tenant that is only remembered."""
    return {
        "microseconds": {str(count): _microseconds(count) for count in TENANTS},
        "grants": GRANTS,
        "bytes_per_idle_tenant": _bytes_per_idle_tenant(),
    }


def _microseconds(num_tenants: int) -> dict[str, float]:
    load = Load(num_tenants)
    for _ in range(2 * num_tenants):
        load.turn()
    gc.collect()
    gc.disable()
    try:
        reports = [took for _ in range(ROUNDS) for took in load.reports()]
        turns = [load.turn() for _ in range(GRANTS)]
    finally:
        gc.enable()
    found = {name: median(turn[name] for turn in turns) for name in turns[0]}
    found["report"] = median(reports)
    found["grant"] = found["end"] - found["report"]
    return {name: round(1e6 * seconds, 2) for name, seconds in found.items()}


def _bytes_per_idle_tenant() -> int:
    """Tenants whose work is done and whose counters are ahead of the floor: kept, with no queue."""
    dispatcher = Dispatcher(PoolConfig(), VtcPolicy())
    dispatcher.apply(ReplicaUp(0.0, "r", CAPACITY))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(IDLE_TENANTS):
        request = f"q{number}"
        dispatcher.apply(Enqueued(0.0, request, f"tenant-{number}", TERMS, PROMPT, OUTPUT))
        dispatcher.apply(Finished(0.0, request, OUTPUT))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    if len(dispatcher.snapshot().tenants) != IDLE_TENANTS:
        raise AssertionError("the tenants were forgotten")
    return round((after - before) / IDLE_TENANTS)
