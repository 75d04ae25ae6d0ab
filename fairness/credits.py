"""What a replica can still take: sequences up to its slots and look-ahead, whole KV blocks.

The in-flight count is the dispatcher's own. Growth room is kept for every sequence in flight, so
that a grant does not force the engine to preempt, except on an empty replica: there the largest
request must have its chance.
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

    def set_capacity(self, capacity: ReplicaCapacity) -> None:
        """Take a new capacity; what is in flight is counted again in its blocks."""
        self.capacity = capacity
        self.num_blocks = sum(t.num_blocks(capacity.block_size) for t in self.held.values())

    def has_slots(self, ticket: Ticket, config: PoolConfig) -> bool:
        """Whether its sequences fit beside those in flight."""
        return self.in_flight + ticket.sequences <= self.capacity.slots + config.lookahead

    def could_hold(self, ticket: Ticket, config: PoolConfig) -> bool:
        """Whether it would fit here if nothing else were in flight."""
        blocks = ticket.num_blocks(self.capacity.block_size)
        return (
            ticket.sequences <= self.capacity.slots + config.lookahead
            and blocks <= self.capacity.kv_tokens // self.capacity.block_size
        )

    def fits(self, ticket: Ticket, config: PoolConfig) -> bool:
        """Whether there is credit for it now."""
        if not self.in_flight:
            return self.could_hold(ticket, config)
        growth = config.growth_blocks * (self.in_flight + ticket.sequences)
        blocks = self.num_blocks + ticket.num_blocks(self.capacity.block_size) + growth
        return (
            self.has_slots(ticket, config)
            and blocks <= self.capacity.kv_tokens // self.capacity.block_size
        )

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
