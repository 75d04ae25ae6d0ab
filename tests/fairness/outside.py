"""What the outside sees of a pool: requests, replicas and tenants, as plain values."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from fairness import events
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms

LOST = "(lost)"
IDLE, BLOCKED, BACKLOGGED = "idle", "blocked", "backlogged"


class BrokenPromiseError(AssertionError):
    """The dispatcher did what docs/fairness.md says it does not do."""


def demand(holds, claim, *figures) -> None:
    if not holds:
        raise BrokenPromiseError(claim, *figures)


def ceil(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


@dataclass(slots=True, eq=False)
class Seen:
    """A request as the outside sees it. `charged` is all it cost so far, `paid` its prompt."""

    spec: events.Enqueued
    arrival: int
    prompt: int
    granted_under: TenantTerms | None = None
    replica: str | None = None
    pinned: str | None = None
    granted: bool = False
    known: bool = False
    charged: int = 0
    paid: int = 0
    out: int = 0
    deadline: float | None = None
    left: float | None = None
    missed: bool = False
    passes: int = 0
    overtakes: int = 0
    urgent: int | None = None
    urgent_charged: int = 0

    @property
    def waits(self) -> bool:
        return self.replica is None and self.pinned is None

    @property
    def output_limit(self) -> int:
        return self.spec.sequences * self.spec.max_output_tokens

    @property
    def refundable(self) -> int:
        return 0 if self.known and self.out else self.paid

    @property
    def place(self) -> tuple[bool, int]:
        """Where it stands in its tenant's queue: what was granted before, then the oldest."""
        return not self.granted, self.arrival

    def blocks(self, size: int) -> int:
        n = self.spec.sequences
        return n * ceil(self.prompt + ceil(self.out, n) + 1, size)


@dataclass(slots=True, eq=False)
class Room:
    """One replica: what it can hold and what we sent there."""

    name: str
    capacity: ReplicaCapacity
    accepting: bool = True
    in_flight: int = 0
    blocks: int = 0
    held: set[Seen] = field(default_factory=set)

    def hold(self, seen: Seen) -> None:
        self.held.add(seen)
        self.in_flight += seen.spec.sequences
        self.blocks += seen.blocks(self.capacity.block_size)

    def release(self, seen: Seen) -> None:
        self.held.remove(seen)
        self.in_flight -= seen.spec.sequences
        self.blocks -= seen.blocks(self.capacity.block_size)


class Account:
    """One tenant: its counter times its weight, its queue, and the caps that its limits make.

    All caps are in milli-units: `jump` is U, `refund` is A's cap, `slack` Z before the division.
    Those named `most_` are divided by the weight, and the largest that any limits allowed.
    """

    def __init__(self, tenant: str, terms: TenantTerms, floor: int) -> None:
        self.tenant = tenant
        self.terms = terms
        self.raw = floor * terms.weight_milli
        self.service = 0
        self.in_flight = 0
        self.unsettled = 0
        self.dip_raw = 0
        self.state = IDLE
        self.waiting: list[tuple[bool, int, Seen]] = []
        self.most_slack = self.most_jump = self.most_refund = 0

    def limit(self, config: PoolConfig, credit: int) -> None:
        """Take the caps that the limits and the pool's credit make now."""
        terms, prices = self.terms, config.prices
        n = min(credit, terms.concurrency)
        prompt = prices.uncached * terms.max_prompt_tokens
        self.output = prices.output * n * terms.max_output_tokens
        self.largest = prompt + prices.output * terms.max_output_tokens
        self.jump = prompt + self.output
        self.refund = n * prompt
        self.slack = config.slack_milli * self.largest // 1000
        self.stake = self.slack + self.jump + self.refund
        self.norm_slack = self.norm(self.slack)
        self.most_slack = max(self.most_slack, self.norm_slack)
        self.most_jump = max(self.most_jump, self.norm(self.jump))
        self.most_refund = max(self.most_refund, self.norm(self.refund))

    @property
    def counter(self) -> int:
        return self.raw // self.terms.weight_milli

    @property
    def settled(self) -> int:
        return (self.raw - 1000 * self.unsettled) // self.terms.weight_milli

    @property
    def head(self) -> Seen | None:
        return self.waiting[0][2] if self.waiting else None

    @property
    def quiet(self) -> bool:
        return not self.waiting and not self.in_flight

    def norm(self, milli: int) -> int:
        return ceil(1000 * milli, self.terms.weight_milli)

    def join_queue(self, seen: Seen) -> None:
        seen.replica = seen.pinned = None
        insort(self.waiting, (*seen.place, seen))

    def leave_queue(self, seen: Seen) -> None:
        self.waiting.pop(bisect_left(self.waiting, seen.place))
