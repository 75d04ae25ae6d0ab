"""The values the fairness core is told about tenants, replicas and prices."""

from dataclasses import dataclass
from enum import StrEnum

TenantId = str
RequestId = str
ReplicaId = str


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """The enforced limits of one tenant that enter its bound.

    `weight_milli` is the weight in thousandths; `concurrency` counts sequences in flight;
    `max_prompt_tokens` is L and `max_output_tokens` is cap in docs/fairness.md.
    """

    weight_milli: int
    concurrency: int
    max_prompt_tokens: int
    max_output_tokens: int

    def __post_init__(self) -> None:
        if self.weight_milli < 1:
            raise ValueError("a weight is at least one thousandth")


class RefusalReason(StrEnum):
    """Why the dispatcher would not queue a request, or dropped it when limits shrank."""

    NO_REPLICA_FITS = "no_replica_fits"
    PROMPT_LIMIT = "prompt_limit"
    OUTPUT_LIMIT = "output_limit"
    CONCURRENCY = "concurrency"
    PREDICTED_WAIT = "predicted_wait"
    RATE = "rate"


class GrantReason(StrEnum):
    """Why a tenant was granted: its turn, past a misfit, or past its deadline."""

    TURN = "turn"
    PASS = "pass"  # noqa: S105 - no password
    URGENT = "urgent"


class PassReason(StrEnum):
    """Why a waiting request was passed: it fits nowhere, or a sibling's prefix is cached."""

    MISFIT = "misfit"
    LOCALITY = "locality"


class MissReason(StrEnum):
    """Why a head was not granted by its deadline."""

    BUDGET = "budget"
    BEYOND_SLACK = "beyond_slack"
    NO_FIT = "no_fit"


@dataclass(frozen=True, slots=True)
class Prices:
    """Service units per token, in milli-units: uncached prompt, cached prompt, output."""

    uncached: int = 1_000
    cached: int = 100
    output: int = 2_000


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """What one replica can hold: sequences, and tokens of KV cache in blocks of `block_size`."""

    slots: int
    kv_tokens: int
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.slots < 1 or self.block_size < 1 or self.kv_tokens < self.block_size:
            raise ValueError("a replica holds at least one sequence of one block")


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """How one pool grants: its prices, the look-ahead beyond a replica's slots, the queue TTL.

    `growth_blocks` is the allowance in blocks per in-flight sequence that the fit test keeps free;
    `load_factor_milli` bounds cache affinity to that many thousandths of the mean in-flight.
    `max_passes` is K, for misfits and for locality apart; `slack_milli` is Z in thousandths of a
    tenant's largest request; `urgent_share_milli` is the urgent lane's share of the service. A
    head's deadline lies between `t_min_s` and `t_max_s` after it became head.
    """

    prices: Prices = Prices()
    lookahead: int = 1
    growth_blocks: int = 1
    load_factor_milli: int = 1_250
    ttl_s: float = 120.0
    max_passes: int = 8
    slack_milli: int = 1_000
    urgent_share_milli: int = 50
    t_min_s: float = 2.0
    t_max_s: float = 90.0
