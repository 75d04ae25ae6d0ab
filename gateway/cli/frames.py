"""What two looks at a gateway come to: shares and hit rates of the time between them."""

from collections.abc import Mapping
from typing import Any

Document = dict[str, Any]


def frame(before: Document, after: Document, interval_s: float) -> Document:
    """The later look, with what happened since the earlier one.

    Each tenant gets its `share` of the service in between, null where there was none; each replica
    its `hit_rate` of prompt tokens, and `preempted` requests. A gateway that was restarted in
    between counts from zero.
    """
    earlier = {pool["pool"]: pool for pool in before["pools"]}
    pools = [_pool(earlier.get(pool["pool"], {}), pool) for pool in after["pools"]]
    return {"interval_s": interval_s, "pools": pools}


def _pool(before: Document, after: Document) -> Document:
    tenants = _grown(before, after, "tenants", "tenant_id", "service")
    served = sum(tenants.values())
    shares = {name: grown / served if served else None for name, grown in tenants.items()}
    queried = _grown(before, after, "replicas", "replica", "prefix_queried_tokens")
    hits = _grown(before, after, "replicas", "replica", "prefix_hit_tokens")
    preempted = _grown(before, after, "replicas", "replica", "preemptions")
    return after | {
        "tenants": [one | {"share": shares[one["tenant_id"]]} for one in after["tenants"]],
        "replicas": [
            one
            | {
                "hit_rate": _ratio(hits.get(one["replica"]), queried.get(one["replica"])),
                "preempted": preempted.get(one["replica"]),
            }
            for one in after["replicas"]
        ],
    }


def _grown(
    before: Document, after: Document, kind: str, key: str, figure: str
) -> Mapping[str, float]:
    """How much a total rose, of everyone who says it; all of it where it fell: it began anew."""
    old = {one[key]: one[figure] for one in before.get(kind, [])}
    grown = {}
    for one in after[kind]:
        total, known = one[figure], old.get(one[key])
        if total is not None:
            rise = total - (known or 0)
            grown[one[key]] = rise if rise >= 0 else total
    return grown


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if whole and part is not None else None
