"""Long seeded walks: queues stay full, so that grants are many and tenants compete throughout."""

from random import Random

import pytest

from fairness import events
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch
from tests.fairness.naive import NaivePool

CONFIG = PoolConfig(ttl_s=60.0)
TERMS = {
    "a": TenantTerms(1000, 9, 64, 32),
    "b": TenantTerms(1000, 9, 300, 4),
    "c": TenantTerms(2500, 3, 20, 60),
    "d": TenantTerms(333, 9, 64, 8),
}
REPLICAS = {"r": ReplicaCapacity(3, 1024), "s": ReplicaCapacity(2, 640)}
CHANGES = [
    TenantTerms(w, n, length, 16) for w in (100, 4000) for n in (2, 6) for length in (20, 90)
]


class Walk:
    """Draws the next event from what is queued and in flight."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.watch = Watch(CONFIG)
        self.twin = NaivePool(CONFIG)
        self.terms = dict(TERMS)
        self.now = 0.0
        self.made = 0
        for name, capacity in REPLICAS.items():
            self.send(events.ReplicaUp(0.0, name, capacity))

    def send(self, event: events.Input) -> None:
        assert self.watch.apply(event) == self.twin.apply(event)

    def step(self) -> None:
        self.now += self.random.choice([0.0, 0.0, 0.05])
        for tenant in self.terms:
            waiting = sum(t.queued for t in self.watch.snapshot.tenants if t.tenant == tenant)
            if waiting < 3 and self.random.random() < 0.8:
                self.enqueue(tenant)
        flying = [(n, s) for n, s in self.watch.live.items() if s.replica is not None]
        if flying and self.random.random() < 0.97:
            self.advance(*self.random.choice(flying))
        else:
            self.disturb()

    def enqueue(self, tenant: str) -> None:
        self.made += 1
        terms = self.terms[tenant]
        length = self.random.choice([1, terms.max_prompt_tokens // 2, terms.max_prompt_tokens])
        sequences = self.random.choice([1, 1, 1, 2])
        self.send(
            events.Enqueued(
                self.now,
                f"q{self.made}",
                tenant,
                terms,
                length,
                terms.max_output_tokens,
                sequences,
                self.random.randrange(3),
            )
        )

    def advance(self, name: str, seen) -> None:
        if not seen.known and self.random.random() < 0.7:
            length = seen.spec.prompt_tokens
            hits = self.random.choice([0, length // 2, length - 1])
            self.send(events.Corrected(self.now, name, length, hits))
            return
        more = self.random.choice([1, 2, 8])
        if seen.out + more < seen.spec.sequences * seen.spec.max_output_tokens:
            self.send(events.Emitted(self.now, name, seen.out + more))
        else:
            kinds = [events.Finished] * 8 + [events.NotStarted, events.Requeued]
            kind = self.random.choice(kinds)
            extra = (seen.out + more,) if kind is events.Finished else ()
            self.send(kind(self.now, name, *extra))

    def disturb(self) -> None:
        what = self.random.randrange(4)
        name = self.random.choice(sorted(REPLICAS))
        if what == 0:
            tenant = self.random.choice(sorted(TERMS))
            self.terms[tenant] = self.random.choice([TERMS[tenant], *CHANGES])
            self.send(events.TenantChanged(self.now, tenant, self.terms[tenant]))
        elif what == 1:
            self.send(events.ReplicaLost(self.now, name))
        else:
            self.send(events.ReplicaUp(self.now, name, REPLICAS[name]))


@pytest.mark.parametrize("seed", range(4))
def test_every_promise_holds_on_a_long_walk(seed) -> None:
    walk = Walk(seed)
    for _ in range(700):
        walk.step()
    assert walk.watch.grants > 60
