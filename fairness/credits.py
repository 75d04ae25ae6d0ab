"""What a replica can still take: sequences up to its slots and look-ahead, whole KV blocks.

The in-flight count is the dispatcher's own. Growth room is kept for every sequence in flight, so
that a grant does not force the engine to preempt, except on an empty replica: there the largest
request must have its chance. A replica held for a pinned request takes nobody else.
"""

from dataclasses import dataclass, field

from fairness.counters import Ticket
from fairness.types import PoolConfig, ReplicaCapacity, ReplicaId, RequestId


@dataclass(slots=True, eq=False)
class Replica:
    """One replica and what is in flight there; `accepting` is false once it drains."""

    id: ReplicaId
    capacity: ReplicaCapacity
    accepting: bool = True
    in_flight: int = 0
    num_blocks: int = 0
    held: dict[RequestId, Ticket] = field(default_factory=dict)
    reserved_for: Ticket | None = None

    @property
    def all_blocks(self) -> int:
        """KV blocks in all."""
        return self.capacity.kv_tokens // self.capacity.block_size

    def set_capacity(self, capacity: ReplicaCapacity) -> None:
        """Take a new capacity; what is in flight is counted again in its blocks."""
        self.capacity = capacity
        self.num_blocks = sum(t.num_blocks(capacity.block_size) for t in self.held.values())

    def has_slots(self, sequences: int, config: PoolConfig) -> bool:
        """Whether so many sequences fit beside those in flight."""
        return self.in_flight + sequences <= self.capacity.slots + config.lookahead

    def could_hold(self, ticket: Ticket, config: PoolConfig) -> bool:
        """Whether it would fit here if nothing else were in flight."""
        blocks = ticket.num_blocks(self.capacity.block_size)
        return (
            ticket.sequences <= self.capacity.slots + config.lookahead and blocks <= self.all_blocks
        )

    def lacks(self, ticket: Ticket) -> int:
        """Blocks that must be freed before it could fit; negative when there are more."""
        return self.num_blocks + ticket.num_blocks(self.capacity.block_size) - self.all_blocks

    def fits(self, ticket: Ticket, config: PoolConfig) -> bool:
        """Whether there is credit for it now."""
        if self.reserved_for is not None and self.reserved_for is not ticket:
            return False
        if not self.in_flight:
            return self.could_hold(ticket, config)
        if not self.has_slots(ticket.sequences, config):
            return False
        growth = config.growth_blocks * (self.in_flight + ticket.sequences)
        return self.lacks(ticket) + growth <= 0

    def has_room(self, config: PoolConfig) -> bool:
        """Whether the smallest of all requests would fit: when not, nobody's does."""
        if not self.accepting or self.reserved_for is not None:
            return False
        if not self.in_flight:
            return True
        growth = config.growth_blocks * (self.in_flight + 1)
        return self.has_slots(1, config) and self.num_blocks + 1 + growth <= self.all_blocks

    def hold(self, ticket: Ticket) -> None:
        """Take the credit of a granted request."""
        ticket.replica = self.id
        self.held[ticket.request] = ticket
        self.in_flight += ticket.sequences
        self.num_blocks += ticket.num_blocks(self.capacity.block_size)

    def release(self, ticket: Ticket) -> None:
        """Return the credit of a request that ended or waits again."""
        del self.held[ticket.request]
        self.in_flight -= ticket.sequences
        self.num_blocks -= ticket.num_blocks(self.capacity.block_size)
