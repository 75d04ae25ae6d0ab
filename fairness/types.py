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
    """

    prices: Prices = Prices()
    lookahead: int = 1
    growth_blocks: int = 1
    load_factor_milli: int = 1_250
    ttl_s: float = 120.0
