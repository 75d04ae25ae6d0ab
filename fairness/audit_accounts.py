"""Requests, tenants and replicas as the audit's book keeps them."""

from dataclasses import dataclass, field

from fairness.audit_limits import Limits
from fairness.types import ReplicaCapacity, ReplicaId, RequestId, TenantId, TenantTerms

UNIT = 1_000


@dataclass(slots=True, eq=False)
class Request:
    """One request. It waits while `queued`; `replica` is where it is in flight."""

    request: RequestId
    tenant: TenantId
    arrival: int
    enqueued_at: float
    prompt_tokens: int
    max_output_tokens: int
    sequences: int
    charged: int | None = None
    corrected: bool = False
    output: int = 0
    queued: bool = False
    replica: ReplicaId | None = None
    passes: int = 0
    overtakes: int = 0
    deadline: float | None = None
    left_s: float | None = None
    allowed_s: float | None = None
    missed: bool = False
    lent: int | None = None
    spent: int = 0

    @property
    def output_limit(self) -> int:
        """The most output it can be charged for."""
        return self.sequences * self.max_output_tokens

    @property
    def refundable(self) -> int:
        """What of its prompt's charge may still come back."""
        settled = self.corrected and self.output
        return 0 if self.charged is None or settled else self.charged

    @property
    def place(self) -> tuple[int, int]:
        """Its place in its tenant's queue: what was granted before comes first."""
        return (1 if self.charged is None else 0, self.arrival)


@dataclass(slots=True, eq=False)
class Tenant:
    """One account. `above` and `below` bound how far it can be from the floor, times its weight."""

    tenant: TenantId
    terms: TenantTerms
    limits: Limits
    raw: int
    service: int = 0
    queue: list[tuple[tuple[int, int], Request]] = field(default_factory=list)
    num_queued: int = 0
    in_flight: int = 0
    unsettled: int = 0
    open_output: int = 0
    blocked: bool = False
    backlogged: bool = False
    above: int = 0
    below: int = 0
    refund_cap: int | None = None

    @property
    def counter(self) -> int:
        """c, rounded down."""
        return self.raw // self.terms.weight_milli

    @property
    def settled(self) -> int:
        """s: the counter less what may still come back, rounded down."""
        return (self.raw - UNIT * self.unsettled) // self.terms.weight_milli

    @property
    def highest(self) -> int:
        """How far above the floor the counter may be, from what its last grant left open."""
        return -(-self.above // self.terms.weight_milli)

    @property
    def lowest(self) -> int:
        """How far below the floor it may be, from what could come back when it was lifted."""
        return -(-self.below // self.terms.weight_milli)

    @property
    def served(self) -> int:
        """W/weight, rounded down."""
        return UNIT * self.service // self.terms.weight_milli


@dataclass(slots=True)
class Replica:
    """One replica and the sequences in flight there."""

    capacity: ReplicaCapacity
    accepting: bool = True
    held: dict[RequestId, Request] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Sequences in flight."""
        return sum(request.sequences for request in self.held.values())
