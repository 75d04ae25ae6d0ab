"""One tenant's virtual token counter in one pool, and the request it is charged for.

A counter is kept exactly, as the integer `raw` = counter times weight; the division's remainder is
thereby carried for ever. `lag` is how far the counter is above the pool's floor, times the weight:
a weight change keeps it.
"""

from dataclasses import dataclass, field

from fairness.caps import UNIT, Caps, normalised
from fairness.cost import ceil_div
from fairness.types import ReplicaId, RequestId, TenantId, TenantTerms


@dataclass(slots=True, eq=False)
class Ticket:
    """One request from `Enqueued` to its end; `replica` is where it is in flight.

    `prompt_milli` is what its prompt costs with nothing cached; `output_limit` the most output
    tokens it can be charged for, over all its sequences. `stamp` names its entry in its tenant's
    queue and is 0 while it does not wait; `pinned_to` is the replica held for it. `charged` is what
    its prompt costs now, None before its first grant; `arrival` orders requests. `passes` and
    `overtakes` count who was granted before it, as a misfit and for locality. `deadline` is None
    while its clock does not run, `left_s` what then is left. `urgent_cost` is what the urgent lane
    lent it, `urgent_spent` what it was charged since.
    """

    request: RequestId
    tenant: TenantId
    arrival: int
    enqueued_at: float
    prompt_tokens: int
    max_output_tokens: int
    sequences: int
    affinity: int
    prefix: tuple[int, ...]
    kv_prompt_tokens: int
    prompt_milli: int
    output_limit: int
    charged: int | None = None
    corrected: bool = False
    output_tokens: int = 0
    replica: ReplicaId | None = None
    pinned_to: ReplicaId | None = None
    stamp: int = 0
    passes: int = 0
    overtakes: int = 0
    deadline: float | None = None
    left_s: float | None = None
    missed: bool = False
    urgent_cost: int | None = None
    urgent_spent: int = 0

    @property
    def refundable(self) -> int:
        """How much of its prompt charge a correction or a refund can still take back."""
        if self.charged is None or (self.corrected and self.output_tokens):
            return 0
        return self.charged

    def num_blocks(self, block_size: int) -> int:
        """KV blocks it holds: whole blocks per sequence, with room for each one's next token."""
        sequences = self.sequences
        tokens = self.kv_prompt_tokens + 1 - (-self.output_tokens // sequences)
        return sequences * -(-tokens // block_size)


Entry = tuple[int, int, int, Ticket]
"""A place in a tenant's queue: 0 if it was granted before, else 1; arrival; stamp; request."""


@dataclass(slots=True, eq=False)
class Account:
    """One tenant in one pool. Amounts are milli-units; `in_flight` counts sequences.

    `unsettled` is A, what its requests can still get back; `open_output` is what those in flight
    can still be charged for output. `reach_raw` and `dip_raw` bound the lag from above and below:
    the first is fixed at each grant, the second on becoming backlogged. `waiting_*` are sums over
    its queue: prompts not yet charged, most output tokens, sequences, requests with a prefix;
    `first` is its head as the pool last saw it. `mean_output` is the recent output per sequence, in
    thousandths of a token. `serial` tells
    accounts apart that one tenant had one after the other, of which `gone` ones were forgotten.
    """

    tenant: TenantId
    terms: TenantTerms
    caps: Caps
    raw: int
    serial: int = 0
    gone: bool = False
    first: Ticket | None = None
    waiting: list[Entry] = field(default_factory=list)
    num_waiting: int = 0
    waiting_prompts: int = 0
    waiting_output: int = 0
    waiting_sequences: int = 0
    waiting_prefixed: int = 0
    in_flight: int = 0
    unsettled: int = 0
    open_output: int = 0
    service: int = 0
    uncharged_tokens: int = 0
    reach_raw: int = 0
    dip_raw: int = 0
    blocked: bool = False
    backlogged_since: float | None = None
    service_then: int = 0
    mean_output: int | None = None

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

    @property
    def refund_cap(self) -> int:
        """The cap on A/weight; never less than what older limits have let in."""
        if self.unsettled <= self.caps.refund:
            return self.caps.refund_norm
        return normalised(self.unsettled, self.terms.weight_milli)

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

    def note_grant(self, lead: int, charge: int) -> None:
        """It was just granted from a counter at most `lead` above the floor, rounded down.

        To that come the prompt's `charge` and every output token that its requests in flight may
        still emit: so far above the floor it may go.
        """
        weight = self.terms.weight_milli
        self.reach_raw = (lead + 1) * weight - 1 + UNIT * (charge + self.open_output)

    def note_output(self, output_tokens: int, sequences: int) -> None:
        """A request ended with so many output tokens: the mean moves a quarter of the way."""
        seen = UNIT * output_tokens // sequences
        mean = self.mean_output
        self.mean_output = seen if mean is None else (3 * mean + seen) // 4

    def lag(self, floor: int) -> int:
        """How far the counter is above the floor, times the weight."""
        return self.raw - floor * self.terms.weight_milli

    def set_terms(self, terms: TenantTerms, floor: int) -> None:
        """Take new limits and weight; the lag stays, so neither lead nor debt is a windfall."""
        self.raw = self.lag(floor) + floor * terms.weight_milli
        self.terms = terms

    @property
    def reach(self) -> int:
        """The most its counter can be above the floor, from what its last grant left open."""
        return self.reach_raw // self.terms.weight_milli

    @property
    def dip(self) -> int:
        """The most its counter can be below the floor, from what was open when it last joined."""
        return ceil_div(self.dip_raw, self.terms.weight_milli)
