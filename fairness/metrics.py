"""What a pool shows of itself at one moment, as values for metrics and the admin's views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairness.bound import BoundTerms
from fairness.types import MissReason, ReplicaId, RequestId, TenantId


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant in one pool. Amounts are milli-units; `in_flight` counts sequences.

    `service_milli` is all it was charged, `counter` the same normalised and lifted. `reach` and
    `dip` are how far above and below the floor its counter may stand now. `uncharged_tokens` were
    reported by a replica beyond what the request declared. `blocked`: it waits, and its own
    concurrency limit holds it back. `head_deadline` is when its head is to be granted, None while
    that clock does not run. `slack` is Z, `largest_milli` its largest request.
    """

    tenant: TenantId
    weight_milli: int
    counter: int
    service_milli: int
    unsettled_milli: int
    queued: int
    in_flight: int
    backlogged: bool
    head_enqueued_at: float | None
    reach: int
    dip: int
    uncharged_tokens: int
    blocked: bool
    head_deadline: float | None
    slack: int
    largest_milli: int


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One replica as the dispatcher counts it."""

    replica: ReplicaId
    accepting: bool
    in_flight: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One pool: its floor, how far backlogged tenants are apart, and how far they can be.

    `jain` compares the normalised service rates of the backlogged tenants, each since it became
    so. `stopped_at` is the request that has a free slot but not the KV tokens it needs;
    `misfits` counts such stops, `pinned` is the one a replica is held for, `overtakes_max` the most
    grants that ever passed one waiting request. `service_milli` is all that was charged, and
    `urgent_milli` how much of it to urgent grants; `missed` counts heads past their deadline.
    `rate_milli` is the usual service per second, 0 while unknown.
    """

    floor: int
    spread: int
    bound: BoundTerms
    jain: float
    stopped_at: RequestId | None
    misfits: int
    pinned: RequestId | None
    overtakes_max: int
    urgent_grants: int
    urgent_milli: int
    service_milli: int
    missed: Mapping[MissReason, int]
    rate_milli: int
    tenants: tuple[TenantSnapshot, ...]
    replicas: tuple[ReplicaSnapshot, ...]

    @property
    def spread_bound(self) -> int:
        """What `spread` cannot exceed."""
        return self.bound.total


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 when all shares are equal, 1/n when one has everything."""
    squares = sum(share * share for share in shares)
    if not squares:
        return 1.0
    return sum(shares) ** 2 / (len(shares) * squares)
