"""Everything that can happen to a pool, as values: the dispatcher is a fold over these.

Inputs come from the gateway; effects come out of `Dispatcher.apply`. Every event carries `now`,
in seconds on one monotonic clock. The two lists below are the language of the audit log.
"""

from dataclasses import dataclass

from fairness.types import (
    RefusalReason,
    ReplicaCapacity,
    ReplicaId,
    RequestId,
    TenantId,
    TenantTerms,
)

# --- inputs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """A replica joined, or its capacity changed; requests in flight there stay."""

    now: float
    replica: ReplicaId
    capacity: ReplicaCapacity


@dataclass(frozen=True, slots=True)
class ReplicaDrained:
    """The replica gets no further grants; what is in flight there finishes."""

    now: float
    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """The replica is gone: unstarted requests wait again, under the charge already made."""

    now: float
    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class TenantChanged:
    """A tenant's weight or limits changed; its lag in tokens is kept."""

    now: float
    tenant: TenantId
    terms: TenantTerms


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A request joined its tenant's queue, under the tenant's terms as the gateway knows them.

    `affinity` is a keyed hash of its namespace and leading blocks, 0 for none. `prompt_tokens` is
    of the whole request and, when estimated, an upper bound; `max_output_tokens` is per sequence.
    """

    now: float
    request: RequestId
    tenant: TenantId
    terms: TenantTerms
    prompt_tokens: int
    max_output_tokens: int
    sequences: int = 1
    affinity: int = 0
    prompt_is_estimate: bool = False

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.prompt_tokens < 1 or self.max_output_tokens < 0:
            raise ValueError("a request has a sequence, a prompt token and no negative output")


@dataclass(frozen=True, slots=True)
class Corrected:
    """The engine said how many prompt tokens were cached, and the true prompt length.

    Only ever lowers the charge: tokens beyond those charged at the grant are counted, not charged.
    """

    now: float
    request: RequestId
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """`output_tokens` so far, over all sequences of the request: a high-water mark."""

    now: float
    request: RequestId
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The request left the replica, for whatever reason, having emitted `output_tokens`."""

    now: float
    request: RequestId
    output_tokens: int


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The request ended before its first token, by no fault of its tenant: refund all, end it."""

    now: float
    request: RequestId


@dataclass(frozen=True, slots=True)
class Requeued:
    """A granted, unstarted request goes back to the head of its queue under its charge id."""

    now: float
    request: RequestId


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client left while the request waited. In flight, `Finished` tells instead."""

    now: float
    request: RequestId


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed: requests older than the TTL expire."""

    now: float


# --- effects -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Granted:
    """Send `request` to `replica` now; `charge_milli` is what its prompt cost, in milli-units."""

    now: float
    request: RequestId
    tenant: TenantId
    replica: ReplicaId
    charge_milli: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The request waited its whole TTL; `replicas_up` tells 429 from 503."""

    now: float
    request: RequestId
    tenant: TenantId
    replicas_up: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The request can never be granted: it fits no empty replica, or a limit of its tenant."""

    now: float
    request: RequestId
    tenant: TenantId
    reason: RefusalReason = RefusalReason.NO_REPLICA_FITS


@dataclass(frozen=True, slots=True)
class Lifted:
    """The tenant became backlogged below the floor, and its counter rose to it."""

    now: float
    tenant: TenantId
    counter: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The tenant was quiet and not ahead of the floor, so its account was dropped.

    `service_milli` is all it was charged since the account was opened; a later account starts at 0.
    """

    now: float
    tenant: TenantId
    service_milli: int


RequestInput = Enqueued | Corrected | Emitted | Finished | NotStarted | Requeued | Cancelled
PoolInput = ReplicaUp | ReplicaDrained | ReplicaLost | TenantChanged | Ticked
Input = RequestInput | PoolInput
Effect = Granted | Expired | Refused | Lifted | Forgotten
Event = Input | Effect
