"""Turns a pool's state into the values of `fairness.metrics`."""

from collections.abc import Collection

from fairness.bound import bound_terms, spread
from fairness.counters import Account
from fairness.credits import Replica
from fairness.grants import Granter
from fairness.metrics import PoolSnapshot, ReplicaSnapshot, TenantSnapshot, jain
from fairness.pool import Pool


def pool_snapshot(pool: Pool, granter: Granter) -> PoolSnapshot:
    """The whole pool; changes nothing and copies tables first, as a thread reads metrics too."""
    ledger, tallies = pool.ledger, granter.tallies
    backlogged = ledger.backlogged()
    return PoolSnapshot(
        floor=ledger.floor,
        spread=spread(backlogged),
        bound=bound_terms(backlogged, ledger.floor_lag_seen()),
        jain=service_jain(backlogged, pool.now),
        stopped_at=granter.stopped_at,
        misfits=tallies.misfits,
        pinned=None if pool.pinned is None else pool.pinned.request,
        overtakes_max=tallies.overtakes_max,
        urgent_grants=pool.lane.grants,
        urgent_milli=pool.lane.served,
        service_milli=pool.service,
        missed=dict(tallies.missed),
        rate_milli=pool.rates.usual,
        tenants=tuple(tenant_snapshot(a) for a in tuple(ledger.accounts.values())),
        replicas=tuple(replica_snapshot(r) for r in tuple(pool.replicas.values())),
    )


def tenant_snapshot(account: Account) -> TenantSnapshot:
    """One account."""
    head = account.first
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
        blocked=account.blocked,
        head_deadline=None if head is None else head.deadline,
        slack=account.caps.slack_norm,
        largest_milli=account.caps.largest,
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
