"""Everything that can happen to a pool, as values: the dispatcher is a fold over these.

Inputs come from the gateway; effects come out of `Dispatcher.apply`. Every event carries `now`,
in seconds on one clock that never goes back. The two lists below are the language of the audit log.
Nobody changes an event: they are not frozen only because a frozen one takes six times as long to
make, and several are made for every grant.
"""

from dataclasses import dataclass

from fairness.types import (
    GrantReason,
    MissReason,
    PassReason,
    RefusalReason,
    ReplicaCapacity,
    ReplicaId,
    RequestId,
    TenantId,
    TenantTerms,
)

# --- inputs ------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReplicaUp:
    """A replica joined, or its capacity changed; requests in flight there stay."""

    now: float
    replica: ReplicaId
    capacity: ReplicaCapacity


@dataclass(slots=True)
class ReplicaDrained:
    """The replica gets no further grants; what is in flight there finishes."""

    now: float
    replica: ReplicaId


@dataclass(slots=True)
class ReplicaLost:
    """The replica is gone: unstarted requests wait again, under the charge already made."""

    now: float
    replica: ReplicaId


@dataclass(slots=True)
class TenantChanged:
    """A tenant's weight or limits changed; its lag in tokens is kept."""

    now: float
    tenant: TenantId
    terms: TenantTerms


@dataclass(slots=True)
class Enqueued:
    """A request joined its tenant's queue, under the tenant's terms as the gateway knows them.

    `affinity` is a keyed hash of its namespace and leading blocks, 0 for none; `prefix` are such
    hashes of ever longer beginnings of its prompt, shortest first. `prompt_tokens` is of the whole
    request and, when estimated, an upper bound; `max_output_tokens` is per sequence.
    """

    now: float
    request: RequestId
    tenant: TenantId
    terms: TenantTerms
    prompt_tokens: int
    max_output_tokens: int
    sequences: int = 1
    affinity: int = 0
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.prompt_tokens < 1 or self.max_output_tokens < 0:
            raise ValueError("a request has a sequence, a prompt token and no negative output")


@dataclass(slots=True)
class Corrected:
    """The engine said how many prompt tokens were cached, and the true prompt length.

    Only ever lowers the charge: tokens beyond those charged at the grant are counted, not charged.
    """

    now: float
    request: RequestId
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Emitted:
    """`output_tokens` so far, over all sequences of the request: a high-water mark."""

    now: float
    request: RequestId
    output_tokens: int


@dataclass(slots=True)
class Finished:
    """The request left the replica, for whatever reason, having emitted `output_tokens`."""

    now: float
    request: RequestId
    output_tokens: int


@dataclass(slots=True)
class NotStarted:
    """The request ended before its first token, by no fault of its tenant: refund all, end it."""

    now: float
    request: RequestId


@dataclass(slots=True)
class Requeued:
    """A granted, unstarted request goes back to the head of its queue under its charge id."""

    now: float
    request: RequestId


@dataclass(slots=True)
class Cancelled:
    """The client left while the request waited. In flight, `Finished` tells instead."""

    now: float
    request: RequestId


@dataclass(slots=True)
class Ticked:
    """Time passed: requests older than the TTL expire, deadlines pass."""

    now: float


@dataclass(slots=True)
class Restarted:
    """A new incarnation took over: every request and replica of the last one is gone.

    Counters and the floor stay. A request with output keeps its charges; others are refunded.
    """

    now: float
    epoch: int


@dataclass(slots=True)
class DegradedOn:
    """From here on something that the promises rest on is missing; `reason` says what."""

    now: float
    reason: str


@dataclass(slots=True)
class DegradedOff:
    """What was missing for `reason` is back."""

    now: float
    reason: str


# --- effects -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Granted:
    """Send `request` to `replica` now; `charge_milli` is what its prompt cost, in milli-units.

    `counter` is its tenant's just before, `least` that of the tenant whose turn it was.
    """

    now: float
    request: RequestId
    tenant: TenantId
    replica: ReplicaId
    charge_milli: int
    reason: GrantReason
    counter: int
    least: int


@dataclass(slots=True)
class Pinned:
    """A misfit that was passed often enough is granted, and `replica` is held for it until it fits.

    Charged like `Granted`; the request is sent when `Dispatched` follows.
    """

    now: float
    request: RequestId
    tenant: TenantId
    replica: ReplicaId
    charge_milli: int
    counter: int
    least: int


@dataclass(slots=True)
class Dispatched:
    """A pinned request has its credit: send it to `replica` now."""

    now: float
    request: RequestId
    tenant: TenantId
    replica: ReplicaId


@dataclass(slots=True)
class Unpinned:
    """The replica held for a pinned request is gone: it waits again, under its charge."""

    now: float
    request: RequestId
    tenant: TenantId


@dataclass(slots=True)
class Passed:
    """`by` is granted before `request`, whose count of such passes is now `passes`."""

    now: float
    request: RequestId
    tenant: TenantId
    by: RequestId
    passes: int
    reason: PassReason


@dataclass(slots=True)
class Headed:
    """`request` heads its tenant's queue and is to be granted by `deadline`.

    The deadline is `work_milli` (what may go before it) over `rate_milli` (what the pool does in a
    second, 0 while unknown), within its limits; after a block, it is what was left of it.
    """

    now: float
    request: RequestId
    tenant: TenantId
    deadline: float
    work_milli: int
    rate_milli: int


@dataclass(slots=True)
class Missed:
    """The head's deadline passed and it still waits."""

    now: float
    request: RequestId
    tenant: TenantId
    reason: MissReason


@dataclass(slots=True)
class Blocked:
    """The tenant waits, but its own concurrency limit holds its head back: it is idle."""

    now: float
    tenant: TenantId


@dataclass(slots=True)
class Unblocked:
    """The tenant's limit lets its head go again."""

    now: float
    tenant: TenantId


@dataclass(slots=True)
class Expired:
    """The request waited its whole TTL; `replicas_up` tells 429 from 503."""

    now: float
    request: RequestId
    tenant: TenantId
    replicas_up: int


@dataclass(slots=True)
class Refused:
    """The request is not queued, or no longer: it can never be granted, or not in time.

    `retry_after_s` is when another try may succeed; None when nobody can say.
    """

    now: float
    request: RequestId
    tenant: TenantId
    reason: RefusalReason = RefusalReason.NO_REPLICA_FITS
    retry_after_s: float | None = None


@dataclass(slots=True)
class Lifted:
    """The tenant became backlogged below the floor, and its counter rose to it."""

    now: float
    tenant: TenantId
    counter: int


@dataclass(slots=True)
class Forgotten:
    """The tenant was quiet and not ahead of the floor, so its account was dropped.

    `service_milli` is all it was charged since the account was opened; a later account starts at 0.
    """

    now: float
    tenant: TenantId
    service_milli: int


RequestInput = Enqueued | Corrected | Emitted | Finished | NotStarted | Requeued | Cancelled
PoolInput = (
    ReplicaUp
    | ReplicaDrained
    | ReplicaLost
    | TenantChanged
    | Ticked
    | Restarted
    | DegradedOn
    | DegradedOff
)
Input = RequestInput | PoolInput
Effect = (
    Granted
    | Pinned
    | Dispatched
    | Unpinned
    | Passed
    | Headed
    | Missed
    | Blocked
    | Unblocked
    | Expired
    | Refused
    | Lifted
    | Forgotten
)
Event = Input | Effect
