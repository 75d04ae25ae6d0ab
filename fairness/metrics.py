"""What a pool shows of itself at one moment, as values for metrics and the admin's views."""

from collections.abc import Sequence
from dataclasses import dataclass

from fairness.bound import BoundTerms
from fairness.types import ReplicaId, RequestId, TenantId


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """One tenant in one pool. Amounts are milli-units; `in_flight` counts sequences.

    `service_milli` is all it was charged, `counter` the same normalised and lifted. `reach` and
    `dip` are how far above and below the floor its counter may stand now. `uncharged_tokens` were
    reported by a replica beyond what the request declared.
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
    `misfits` counts such stops.
    """

    floor: int
    spread: int
    bound: BoundTerms
    jain: float
    stopped_at: RequestId | None
    misfits: int
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
