"""Which replica a grant names: the one its prefix prefers, else the least loaded one.

The preference is a rendezvous hash: when a replica leaves, only its own prefixes move.
"""

from collections.abc import Collection
from hashlib import blake2b

from fairness.cost import ceil_div
from fairness.counters import Ticket
from fairness.credits import Replica
from fairness.types import PoolConfig, ReplicaId


def place(replicas: Collection[Replica], ticket: Ticket, config: PoolConfig) -> Replica | None:
    """The replica to send `ticket` to; None when there is credit for it nowhere."""
    if len(replicas) == 1:
        (only,) = replicas
        return only if only.accepting and only.fits(ticket, config) else None
    fitting = [
        replica for replica in replicas if replica.accepting and replica.fits(ticket, config)
    ]
    if not fitting:
        return None
    if ticket.affinity:
        accepting = [replica for replica in replicas if replica.accepting]
        preferred = max(accepting, key=lambda replica: _preference(ticket.affinity, replica.id))
        if preferred in fitting and preferred.in_flight <= _load_limit(accepting, config):
            return preferred
    return min(fitting, key=lambda replica: (replica.in_flight, replica.id))


def _load_limit(replicas: list[Replica], config: PoolConfig) -> int:
    in_flight = sum(replica.in_flight for replica in replicas)
    return ceil_div(config.load_factor_milli * in_flight, 1_000 * len(replicas))


def _preference(affinity: int, replica: ReplicaId) -> tuple[bytes, ReplicaId]:
    return blake2b(f"{affinity}/{replica}".encode(), digest_size=8).digest(), replica
