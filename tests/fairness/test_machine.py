"""Random lives of a pool: the dispatcher beside its twin, and every promise after every event."""

from math import floor

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairness import events
from fairness.policy import FcfsPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch
from tests.fairness.naive import NaivePool

TENANTS = ["a", "b", "c", "d"]
TERMS = [
    TenantTerms(weight, concurrency, prompt, output)
    for weight, concurrency, prompt, output in [
        (1000, 4, 64, 32),
        (1000, 2, 200, 16),
        (3000, 3, 64, 8),
        (333, 5, 40, 64),
        (7, 2, 30, 4),
    ]
]
CAPACITIES = [ReplicaCapacity(4, 512), ReplicaCapacity(1, 128), ReplicaCapacity(2, 2048, 32)]
CONFIG = PoolConfig(ttl_s=30.0)


class PoolLife(RuleBasedStateMachine):
    """Most steps are plausible; a few name requests that are unknown or in another state."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch(CONFIG)
        self.twin = NaivePool(CONFIG)
        self.now = 0.0
        self.made = 0

    def send(self, event: events.Input) -> None:
        assert self.watch.apply(event) == self.twin.apply(event)

    def one_of(self, data, *, flying: bool) -> str:
        names = [
            name for name, seen in self.watch.live.items() if (seen.replica is not None) == flying
        ]
        return data.draw(st.sampled_from(sorted(names) or ["nobody"]))

    @initialize(capacity=st.sampled_from(CAPACITIES))
    def begin(self, capacity) -> None:
        self.terms = dict(zip(TENANTS, TERMS, strict=False))
        self.send(events.ReplicaUp(0.0, "r0", capacity))

    @rule(
        tenant=st.sampled_from(TENANTS),
        share=st.integers(1, 20),
        output=st.integers(0, 20),
        sequences=st.sampled_from([1, 1, 1, 2]),
        affinity=st.integers(0, 3),
        many=st.integers(1, 4),
    )
    def enqueue(self, tenant, share, output, sequences, affinity, many) -> None:
        terms = self.terms[tenant]
        for _ in range(many):
            self.made += 1
            self.send(
                events.Enqueued(
                    self.now,
                    f"q{self.made}",
                    tenant,
                    terms,
                    max(1, terms.max_prompt_tokens * share // 19),
                    terms.max_output_tokens * output // 19,
                    sequences,
                    affinity,
                )
            )

    @rule(data=st.data(), cached=st.integers(0, 250), skew=st.integers(-30, 30))
    def correct(self, data, cached, skew) -> None:
        name = self.one_of(data, flying=True)
        seen = self.watch.live.get(name)
        prompt = max(1, (seen.spec.prompt_tokens if seen else 1) + skew * (skew % 3 == 0))
        self.send(events.Corrected(self.now, name, prompt, min(cached, prompt)))

    @rule(data=st.data(), more=st.integers(0, 12))
    def emit(self, data, more) -> None:
        name = self.one_of(data, flying=True)
        seen = self.watch.live.get(name)
        self.send(events.Emitted(self.now, name, (seen.out if seen else 0) + more))

    @rule(data=st.data(), more=st.integers(0, 40))
    def finish(self, data, more) -> None:
        name = self.one_of(data, flying=True)
        seen = self.watch.live.get(name)
        self.send(events.Finished(self.now, name, (seen.out if seen else 0) + more))

    @rule(
        data=st.data(),
        kind=st.sampled_from([events.NotStarted, events.Requeued, events.Cancelled]),
        flying=st.booleans(),
    )
    def interrupt(self, data, kind, flying) -> None:
        self.send(kind(self.now, self.one_of(data, flying=flying)))

    @rule(tenant=st.sampled_from(TENANTS), terms=st.sampled_from(TERMS), told=st.booleans())
    def change_terms(self, tenant, terms, told) -> None:
        self.terms[tenant] = terms
        if told:
            self.send(events.TenantChanged(self.now, tenant, terms))

    @rule(name=st.sampled_from(["r0", "r1", "r2"]), capacity=st.sampled_from(CAPACITIES))
    def replica_up(self, name, capacity) -> None:
        self.send(events.ReplicaUp(self.now, name, capacity))

    @rule(
        name=st.sampled_from(["r0", "r1", "r2"]),
        kind=st.sampled_from([events.ReplicaDrained, events.ReplicaLost]),
    )
    def replica_down(self, name, kind) -> None:
        self.send(kind(self.now, name))

    @rule(seconds=st.sampled_from([0.1, 1.0, 14.0]))
    def pass_time(self, seconds) -> None:
        self.now += seconds
        self.send(events.Ticked(self.now))

    @precondition(lambda self: self.made > 2)
    @rule()
    def repeat_an_id(self) -> None:
        terms = self.terms["a"]
        self.send(events.Enqueued(self.now, f"q{self.made}", "a", terms, 1, 1))

    @invariant()
    def books_agree(self) -> None:
        snapshot = self.watch.snapshot
        assert snapshot.floor == self.twin.floor
        assert {t.tenant for t in snapshot.tenants} == set(self.twin.books)
        for tenant in snapshot.tenants:
            books = self.twin.books[tenant.tenant]
            assert tenant.counter == floor(books.c)
            assert tenant.service_milli == books.service
            assert tenant.unsettled_milli == self.twin.unsettled(tenant.tenant)
            assert tenant.queued == len(self.twin.waiting(tenant.tenant))
            assert tenant.in_flight == self.twin.sequences(self.twin.flying(tenant.tenant))
            assert tenant.backlogged == self.twin.backlogged(tenant.tenant)
            assert tenant.uncharged_tokens == books.extra
        for replica in snapshot.replicas:
            held = self.twin.on(replica.replica)
            size = self.twin.replicas[replica.replica][0].block_size
            assert replica.in_flight == self.twin.sequences(held)
            assert replica.num_blocks == sum(work.blocks(size) for work in held)


PoolLife.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestPoolLife = PoolLife.TestCase


class FcfsLife(PoolLife):
    """The control obeys the same books; only the order differs, and the bound is not promised."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch(CONFIG, FcfsPolicy(), promises_bound=False)
        self.twin = NaivePool(CONFIG, fair=False)


FcfsLife.TestCase.settings = settings(PoolLife.TestCase.settings, max_examples=10)
TestFcfsLife = FcfsLife.TestCase
