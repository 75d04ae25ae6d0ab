"""One request in a pool's fair queue, as the gateway holds it from its reservation to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from fairness.types import ReplicaId, TenantTerms


class Phase(Enum):
    """Where a request is between its reservation and its settlement."""

    WAITING = "queued"
    GRANTED = "before_first_byte"
    BEGUN = "streaming"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the pool. Only `PoolQueue` changes `phase`, `replica` and `granted`.

    Its handler sets `sent` when the engine may have the request, and `lost`, which is called when
    the replica is given up. Moments are the queue's clock's.
    """

    request_id: str
    tenant_id: UUID
    terms: TenantTerms
    prompt_tokens: int
    max_output_tokens: int
    sequences: int
    affinity: int
    prefix: tuple[int, ...]
    prompt_param: str
    enqueued_at: float
    granted: asyncio.Future[ReplicaId]
    phase: Phase = Phase.WAITING
    replica: ReplicaId | None = None
    lost: Callable[[], None] | None = None
    output_tokens: int = 0
    sent: bool = False
    granted_at: float | None = None

    @property
    def output_limit(self) -> int:
        """The most output tokens that all its sequences together may come to."""
        return self.sequences * self.max_output_tokens
