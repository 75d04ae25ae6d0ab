"""One tenant's virtual token counter in one pool, and the request it is charged for.

A counter is kept exactly, as the integer `raw` = counter times weight; the division's remainder is
thereby carried for ever. `lag` is how far the counter is above the pool's floor, times the weight:
a weight change keeps it.
"""

from dataclasses import dataclass, field

from fairness.cost import ceil_div
from fairness.types import ReplicaId, RequestId, TenantId, TenantTerms

UNIT = 1_000
"""Weights are thousandths, so a charge in milli-units enters `raw` this many times."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request from `Enqueued` to its end; `replica` is None while it waits.

    `charged` is what its prompt costs now, None before its first grant; `arrival` orders requests.
    """

    request: RequestId
    tenant: TenantId
    arrival: int
    enqueued_at: float
    prompt_tokens: int
    max_output_tokens: int
    sequences: int
    affinity: int
    kv_prompt_tokens: int
    charged: int | None = None
    corrected: bool = False
    output_tokens: int = 0
    replica: ReplicaId | None = None

    @property
    def output_limit(self) -> int:
        """The most output tokens it can be charged for, over all its sequences."""
        return self.sequences * self.max_output_tokens

    @property
    def refundable(self) -> int:
        """How much of its prompt charge a correction or a refund can still take back."""
        if self.charged is None or (self.corrected and self.output_tokens):
            return 0
        return self.charged

    def num_blocks(self, block_size: int) -> int:
        """KV blocks it holds: whole blocks per sequence, with room for each one's next token."""
        tokens = self.kv_prompt_tokens + ceil_div(self.output_tokens, self.sequences) + 1
        return self.sequences * ceil_div(tokens, block_size)


@dataclass(slots=True, eq=False)
class Account:
    """One tenant in one pool. Amounts are milli-units; `in_flight` counts sequences.

    `unsettled` is A, what its requests can still get back; `open_output` is what those in flight
    can still be charged for output. `reach_raw` and `dip_raw` bound the lag from above and below:
    the first is fixed at each grant, the second on becoming backlogged.
    """

    tenant: TenantId
    terms: TenantTerms
    raw: int
    waiting: list[tuple[int, RequestId]] = field(default_factory=list)
    num_waiting: int = 0
    in_flight: int = 0
    unsettled: int = 0
    open_output: int = 0
    service: int = 0
    uncharged_tokens: int = 0
    reach_raw: int = 0
    dip_raw: int = 0
    backlogged_since: float | None = None
    service_then: int = 0

    @property
    def backlogged(self) -> bool:
        """It has a waiting request and no limit of its own holds that request back."""
        return self.backlogged_since is not None

    @property
    def quiet(self) -> bool:
        """Nothing of it waits or is in flight."""
        return self.num_waiting == 0 and self.in_flight == 0

    @property
    def counter(self) -> int:
        """c: normalised service charged, in milli-units."""
        return self.raw // self.terms.weight_milli

    @property
    def settled(self) -> int:
        """The counter less A/weight: what it cannot fall below by corrections and refunds."""
        return (self.raw - UNIT * self.unsettled) // self.terms.weight_milli

    def charge(self, milli: int) -> None:
        """Add to the counter and to the service; a negative amount is a correction or a refund."""
        self.raw += UNIT * milli
        self.service += milli

    def lift(self, floor: int) -> bool:
        """Raise the counter to the floor if it is below; true if it was."""
        level = floor * self.terms.weight_milli
        if self.raw >= level:
            return False
        self.raw = level
        return True

    def note_join(self, now: float) -> None:
        """It became backlogged: what it can still get back may take it below the floor."""
        self.backlogged_since = now
        self.service_then = self.service
        self.dip_raw = UNIT * self.unsettled

    def note_grant(self, floor_lag: int, charge: int) -> None:
        """It was just granted from the smallest counter: fix how far above the floor it may go.

        The smallest counter is at most `floor_lag` above the floor, rounded down; to that come the
        prompt's `charge` and every output token that its requests in flight may still emit.
        """
        weight = self.terms.weight_milli
        self.reach_raw = (floor_lag + 1) * weight - 1 + UNIT * (charge + self.open_output)

    def lag(self, floor: int) -> int:
        """How far the counter is above the floor, times the weight."""
        return self.raw - floor * self.terms.weight_milli

    def set_terms(self, terms: TenantTerms, floor: int) -> None:
        """Take new limits and weight; the lag stays, so neither lead nor debt is a windfall."""
        self.raw = self.lag(floor) + floor * terms.weight_milli
        self.terms = terms

    def normalised(self, milli: int) -> int:
        """An amount as this tenant's counter sees it, rounded up."""
        return ceil_div(UNIT * milli, self.terms.weight_milli)

    @property
    def reach(self) -> int:
        """The most its counter can be above the floor, from what its last grant left open."""
        return self.reach_raw // self.terms.weight_milli

    @property
    def dip(self) -> int:
        """The most its counter can be below the floor, from what was open when it last joined."""
        return ceil_div(self.dip_raw, self.terms.weight_milli)
