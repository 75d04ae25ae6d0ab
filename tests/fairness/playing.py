"""Small scripts that histories are made of."""

from fairness.types import ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch

UNIT = 1000
ROOMY = 1 << 20


def up(watch: Watch, slots: int, kv_tokens: int = ROOMY) -> None:
    watch.replica_up("r", ReplicaCapacity(slots, kv_tokens))


def queue(watch: Watch, tenant: str, terms: TenantTerms, many: int, prompt: int = 1, output=None):
    """Enqueue `many` requests and return their ids; each asks for all the output it may have."""
    names = [f"{tenant}{len(watch.live)}.{i}.{watch.grants}" for i in range(many)]
    output = terms.max_output_tokens if output is None else output
    for name in names:
        watch.enqueued(name, tenant, terms, prompt, output)
    return names


def flying(watch: Watch, tenant: str) -> list[str]:
    return [n for n, s in watch.live.items() if s.spec.tenant == tenant and s.replica is not None]


def run(watch: Watch, tenant: str, output: int = 1, cached: int = 0) -> None:
    """Let everything of a tenant that is in flight end."""
    for name in flying(watch, tenant):
        watch.corrected(name, watch.live[name].prompt, cached)
        watch.finished(name, output)


def until_pinned(watch: Watch) -> None:
    """Let requests of f end, the oldest first, until a misfit is pinned."""
    while not watch.snapshot.pinned:
        watch.finished(flying(watch, "f")[0], 2)


def held(watch: Watch) -> str | None:
    """The replica that is held for the pinned request."""
    return watch.live[watch.snapshot.pinned].pinned
