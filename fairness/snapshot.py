"""Turns the dispatcher's state into the values of `fairness.metrics`."""

from collections.abc import Collection

from fairness.counters import Account, Ticket
from fairness.credits import Replica
from fairness.metrics import ReplicaSnapshot, TenantSnapshot, jain


def tenant_snapshot(account: Account, head: Ticket | None) -> TenantSnapshot:
    """One account; `head` is its oldest waiting request."""
    return TenantSnapshot(
        tenant=account.tenant,
        weight_milli=account.terms.weight_milli,
        counter=account.counter,
        service_milli=account.service,
        unsettled_milli=account.unsettled,
        queued=account.num_waiting,
        in_flight=account.in_flight,
        backlogged=account.backlogged,
        head_enqueued_at=None if head is None else head.enqueued_at,
        reach=account.reach,
        dip=account.dip,
        uncharged_tokens=account.uncharged_tokens,
    )


def replica_snapshot(replica: Replica) -> ReplicaSnapshot:
    """One replica."""
    return ReplicaSnapshot(
        replica=replica.id,
        accepting=replica.accepting,
        in_flight=replica.in_flight,
        num_blocks=replica.num_blocks,
    )


def service_jain(backlogged: Collection[Account], now: float) -> float:
    """Jain's index of normalised service rates, each since its tenant became backlogged."""
    rates = []
    for account in backlogged:
        since = account.backlogged_since
        if since is not None and now > since:
            service = account.service - account.service_then
            rates.append(service / (account.terms.weight_milli * (now - since)))
    return jain(rates)
