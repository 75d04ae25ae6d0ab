"""Random lives of a pool: the dispatcher beside its twin, and every promise after every event."""

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairness import events
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.naive_state import PINNED, WAITING, Work
from tests.fairness.twins import Twins

EXAMPLES = 50
STEPS = 60

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
CAPACITIES = [
    ReplicaCapacity(4, 512),
    ReplicaCapacity(1, 128),
    ReplicaCapacity(2, 2048, 32),
    ReplicaCapacity(3, 256),
]
REPLICAS = ["r0", "r1", "r2"]
HASTY = PoolConfig(
    ttl_s=9.0, max_passes=1, urgent_share_milli=400, t_min_s=0.05, t_max_s=0.3, slack_milli=3000
)
CONFIGS = [
    HASTY,
    PoolConfig(ttl_s=30.0),
    replace(HASTY, max_passes=2, slack_milli=500, urgent_share_milli=50, t_max_s=4.0),
    replace(HASTY, max_passes=0, ttl_s=2.0),
]
REPORTS = {
    events.Emitted: lambda w, n: (w.out + n % 12,),
    events.Finished: lambda w, n: (w.out + n,),
    events.Corrected: lambda w, n: (max(1, w.spec.prompt_tokens + n % 3 - 1), n % 2),
    events.NotStarted: lambda w, n: (),
    events.Requeued: lambda w, n: (),
    events.Cancelled: lambda w, n: (),
}
ARRIVALS = st.tuples(
    st.sampled_from(TENANTS),
    st.integers(1, 20),  # nineteenths of the prompt limit
    st.integers(0, 20),  # and of the output limit
    st.sampled_from([1, 1, 1, 2]),
    st.integers(0, 3),
    st.sampled_from(["", "p", "pq", "pqr", "s"]),
)


class PoolLife(RuleBasedStateMachine):
    """Few rules with much in each: Hypothesis leaves some out of every life, and draws lives short.

    Most steps are plausible; a few name requests that are unknown or in another state.
    """

    fair = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.made = 0
        self.epoch = 0

    def send(self, event: events.Input) -> None:
        self.twins.send(event)

    @initialize(
        capacity=st.sampled_from(CAPACITIES),
        config=st.sampled_from(CONFIGS),
        arrivals=st.lists(ARRIVALS, min_size=8, max_size=16),
    )
    def begin(self, capacity, config, arrivals) -> None:
        self.twins = Twins(config, self.fair)
        self.terms = dict(zip(TENANTS, TERMS, strict=False))
        self.send(events.ReplicaUp(0.0, "r0", capacity))
        self.enqueue(arrivals)

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=6))
    def enqueue(self, arrivals) -> None:
        for tenant, share, output, sequences, affinity, prefix in arrivals:
            self.made += 1
            terms = self.terms[tenant]
            prompt = max(1, terms.max_prompt_tokens * share // 19)
            most = terms.max_output_tokens * output // 19
            self.send(
                events.Enqueued(
                    self.now,
                    f"q{self.made}",
                    tenant,
                    terms,
                    prompt,
                    most,
                    sequences,
                    affinity,
                    tuple(map(ord, prefix)),
                )
            )

    @rule(
        data=st.data(),
        kinds=st.lists(st.sampled_from([*REPORTS, events.Finished, events.Finished]), min_size=1),
        seconds=st.sampled_from([0.0, 0.02, 0.2]),
    )
    def report(self, data, kinds, seconds) -> None:
        """Of what is in flight, something goes on or ends."""
        self.now += seconds
        for kind in kinds:
            if rows := self.twins.requests("sent"):
                self.say(kind, data.draw(st.sampled_from(rows)), data.draw(st.integers(0, 40)))

    @rule(
        data=st.data(),
        kind=st.sampled_from([*REPORTS, events.Cancelled]),
        place=st.sampled_from([WAITING, PINNED, PINNED]),
    )
    def meddle(self, data, kind, place) -> None:
        """A report of what is not in flight, or a client leaves; once in a while, an old id."""
        if rows := self.twins.requests(place):
            self.say(kind, data.draw(st.sampled_from(rows)), 3)
        else:
            terms = self.terms["a"]
            self.send(events.Enqueued(self.now, f"q{self.made}", "a", terms, 1, 1))
            self.send(events.Cancelled(self.now, "nobody"))

    def say(self, kind, w: Work, n: int) -> None:
        self.send(kind(self.now, w.spec.request, *REPORTS[kind](w, n)))

    @rule(tenant=st.sampled_from(TENANTS), terms=st.sampled_from(TERMS), told=st.booleans())
    def change_terms(self, tenant, terms, told) -> None:
        self.terms[tenant] = terms
        if told:
            self.send(events.TenantChanged(self.now, tenant, terms))

    @rule(
        name=st.sampled_from(REPLICAS),
        kind=st.sampled_from(
            [events.ReplicaUp, events.ReplicaUp, events.ReplicaDrained, events.ReplicaLost]
        ),
        capacity=st.sampled_from(CAPACITIES),
    )
    def change_replica(self, name, kind, capacity) -> None:
        self.send(kind(self.now, name, *([capacity] if kind is events.ReplicaUp else [])))

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 1.0, 8.0]))
    def pass_time(self, seconds) -> None:
        self.now += seconds
        self.send(events.Ticked(self.now))

    @rule(capacity=st.sampled_from(CAPACITIES), whole=st.sampled_from([False, False, True]))
    def restart(self, capacity, whole) -> None:
        """Of the dispatcher from its checkpoint, or of the whole gateway."""
        self.twins.reload()
        if whole and self.made > 20:
            self.epoch += 1
            self.send(events.Restarted(self.now, self.epoch))
            self.send(events.ReplicaUp(self.now, "r0", capacity))

    @invariant()
    def books_agree(self) -> None:
        self.twins.agree()


PoolLife.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestPoolLife = PoolLife.TestCase


class FcfsLife(PoolLife):
    """The control obeys the same books; only the order differs, and the bound is not promised."""

    fair = False


FcfsLife.TestCase.settings = settings(PoolLife.TestCase.settings, max_examples=EXAMPLES // 4)
TestFcfsLife = FcfsLife.TestCase
