"""What an operator sees of all pools at one moment, as one JSON document: `GET /pools`.

Amounts are service units, moments seconds from now. What an engine does not say is null.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from engine.protocol import metrics as m
from fairness.metrics import PoolSnapshot, ReplicaSnapshot, TenantSnapshot
from fairness.types import MissReason
from gateway.engines.port import EngineClient, EngineError
from gateway.pool import Pool

Document = dict[str, Any]
MILLI: Final = 1_000
# What is read of an engine's metrics page, and what it is called here.
ENGINE_FIGURES: Final = {
    m.ENGINE_REQUESTS_RUNNING.name: "running",
    m.ENGINE_REQUESTS_WAITING.name: "waiting",
    m.ENGINE_KV_USAGE.name: "kv_usage",
    m.ENGINE_PREEMPTIONS.name: "preemptions",
    m.ENGINE_PREFIX_QUERIES.name: "prefix_queried_tokens",
    m.ENGINE_PREFIX_HITS.name: "prefix_hit_tokens",
}


async def overview(pools: Iterable[Pool], name_of: Callable[[str], str]) -> Document:
    """All pools; `name_of` turns a tenant's id into what people call it."""
    return {"pools": [await _pool(pool, name_of) for pool in pools]}


async def _pool(pool: Pool, name_of: Callable[[str], str]) -> Document:
    engines = pool.upstreams.engines
    figures = await asyncio.gather(*(_figures(engine) for engine in engines.values()))
    snapshot, now = pool.queue.snapshot(), pool.queue.now()
    served = dict(pool.queue.service_by_tenant())
    held = {replica.replica: replica for replica in snapshot.replicas}
    return {
        "pool": pool.model,
        "policy": pool.policy,
        **_whole(snapshot),
        "degraded": sorted(pool.queue.missing),
        "log_backlog": None if pool.log is None else pool.log.backlog,
        "tenants": [
            _tenant(one, name_of(one.tenant), served[one.tenant], now) for one in snapshot.tenants
        ],
        "replicas": [
            _replica(pool, name, held.get(name), said)
            for name, said in zip(engines, figures, strict=True)
        ],
    }


def _whole(snapshot: PoolSnapshot) -> Document:
    return {
        "floor": snapshot.floor / MILLI,
        "spread": snapshot.spread / MILLI,
        "spread_bound": snapshot.spread_bound / MILLI,
        "bound_terms": {name: milli / MILLI for name, milli in asdict(snapshot.bound).items()},
        "jain": snapshot.jain,
        "rate_per_s": snapshot.rate_milli / MILLI,
        "service": snapshot.service_milli / MILLI,
        "urgent_service": snapshot.urgent_milli / MILLI,
        "urgent_grants": snapshot.urgent_grants,
        "missed_deadlines": {reason.value: snapshot.missed.get(reason, 0) for reason in MissReason},
        "overtakes_max": snapshot.overtakes_max,
        "misfits": snapshot.misfits,
        "pinned": snapshot.pinned is not None,
    }


def _tenant(one: TenantSnapshot, name: str, served: float, now: float) -> Document:
    return {
        "tenant": name,
        "tenant_id": one.tenant,
        "weight": one.weight_milli / 1_000,
        "counter": one.counter / MILLI,
        "service": served,
        "queued": one.queued,
        "running": one.in_flight,
        "backlogged": one.backlogged,
        "blocked": one.blocked,
        "head_age_s": None if one.head_enqueued_at is None else now - one.head_enqueued_at,
        "head_deadline_s": None if one.head_deadline is None else one.head_deadline - now,
    }


def _replica(
    pool: Pool, name: str, held: ReplicaSnapshot | None, said: Mapping[str, float]
) -> Document:
    capacity = pool.queue.replicas.get(name)
    return {
        "replica": name,
        "up": pool.monitor.up[name],
        "granted": 0 if held is None else held.in_flight,
        "slots": None if capacity is None else capacity.slots,
        **{known: said.get(known) for known in ENGINE_FIGURES.values()},
    }


async def _figures(engine: EngineClient) -> dict[str, float]:
    """What the engine's page says of `ENGINE_FIGURES`; nothing of one that does not answer."""
    try:
        page = await engine.metrics()
    except EngineError:
        return {}
    return dict(figures(page.decode("utf-8", "replace")))


def figures(page: str) -> Iterable[tuple[str, float]]:
    """The figures that a metrics page in Prometheus' text form holds, by their name here."""
    for line in page.splitlines():
        name, _, rest = line.partition(" ")
        if (known := ENGINE_FIGURES.get(name)) is not None:
            value, *_time = rest.split()
            yield known, float(value)
