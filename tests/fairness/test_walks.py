"""Long seeded walks: queues stay full, so that grants are many and tenants compete throughout."""

from collections import Counter
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from fairness import events
from fairness.types import (
    GrantReason,
    MissReason,
    PassReason,
    PoolConfig,
    Prices,
    RefusalReason,
    ReplicaCapacity,
    TenantTerms,
)
from tests.fairness.naive_state import PINNED, WAITING, Work
from tests.fairness.twins import Twins

STEPS = 400
SEEDS = 3

# Little time, few passes and a large urgent budget, so that every rule has its occasion.
CONFIG = PoolConfig(
    ttl_s=9.0, max_passes=1, urgent_share_milli=300, t_min_s=0.1, t_max_s=0.6, slack_milli=1500
)
CONFIGS = [
    CONFIG,
    replace(CONFIG, urgent_share_milli=20, t_max_s=0.2, ttl_s=3.0),
    replace(CONFIG, max_passes=2, slack_milli=30, t_min_s=0.01, t_max_s=5.0),
    # Nothing divides evenly.
    replace(CONFIG, prices=Prices(997, 101, 2003), slack_milli=777, lookahead=2, growth_blocks=0),
]
TERMS = {
    "a": TenantTerms(1000, 9, 64, 32),
    "b": TenantTerms(1000, 9, 300, 4),
    "c": TenantTerms(2500, 3, 20, 60),
    "d": TenantTerms(333, 9, 64, 8),
}
REPLICAS = {"r": ReplicaCapacity(5, 640), "s": ReplicaCapacity(3, 416)}
CHANGES = [
    TenantTerms(w, n, length, 16) for w in (100, 4000) for n in (1, 2, 6) for length in (20, 300)
]
SMALLER = [ReplicaCapacity(3, 256), ReplicaCapacity(2, 800, 32)]

# Counted by Twins: effects with their reasons, inputs with where their request was.
OCCASIONS = [
    *(f"Granted {reason}" for reason in GrantReason),
    *(f"Passed {reason}" for reason in PassReason),
    *(f"Missed {reason}" for reason in MissReason),
    *(f"Refused {reason}" for reason in RefusalReason),
    *("Headed by rate", "Headed between", "Headed without", "Headed again"),
    *("Pinned", "Dispatched", "Unpinned", "Blocked", "Unblocked", "Lifted", "Expired", "Forgotten"),
    *(
        f"{kind}{PINNED}"
        for kind in ("Cancelled", "Emitted", "Finished", "Corrected", "NotStarted")
    ),
    *(f"{kind}(sent)" for kind in ("Emitted", "Finished", "Corrected", "NotStarted", "Requeued")),
    *("Restarted", "ReplicaLost", "ReplicaDrained", "ReplicaUp", "TenantChanged", "DegradedOn"),
]


class Walk:
    """Draws the next event from what is queued and in flight."""

    def __init__(self, seed: int, config: PoolConfig = CONFIG, *, fair: bool = True) -> None:
        self.random = Random(seed)
        self.twins = Twins(config, fair)
        self.terms = dict(TERMS)
        self.now = 0.0
        self.made = 0
        self.epoch = 0
        for name, capacity in REPLICAS.items():
            self.send(events.ReplicaUp(0.0, name, capacity))

    def send(self, event: events.Input) -> None:
        self.twins.send(event)
        self.twins.agree()

    def step(self) -> None:
        self.now += self.random.choice([0.0, 0.0, 0.0, 0.02, 0.1])
        for tenant in self.terms:
            if len(self.twins.twin.waiting(tenant)) < 4 and self.random.random() < 0.6:
                self.enqueue(tenant)
        sent, pinned = self.twins.requests("sent"), self.twins.requests(PINNED)
        if pinned and self.random.random() < 0.1:
            self.interfere(PINNED)
        elif pinned and self.random.random() < 0.05:
            self.take_away(pinned[0].hold)
        elif sent and self.random.random() < 0.95:
            self.advance(self.random.choice(sent))
        else:
            self.disturb()

    def enqueue(self, tenant: str) -> None:
        self.made += 1
        terms = self.terms[tenant]
        length = self.random.choice([1, terms.max_prompt_tokens // 2, terms.max_prompt_tokens])
        excess = self.random.random()
        depth = self.random.choice([0, 1, 2, 3])
        family = self.random.randrange(3)
        self.send(
            events.Enqueued(
                self.now,
                f"q{self.made}",
                tenant,
                terms,
                length + (excess < 0.01),
                terms.max_output_tokens + (excess > 0.99),
                self.random.choice([1, 1, 1, 2]),
                self.random.randrange(3),
                tuple(10 * family + i for i in range(depth)),
            )
        )

    def advance(self, w: Work) -> None:
        if not w.known and self.random.random() < 0.7:
            length = w.spec.prompt_tokens
            hits = self.random.choice([0, length // 2, length - 1])
            true_length = length * self.random.choice([1] * 15 + [9])
            self.send(events.Corrected(self.now, w.spec.request, true_length, hits))
            return
        more = w.out + self.random.choice([1, 2, 8])
        if more < w.cap and self.random.random() < 0.9:
            self.send(events.Emitted(self.now, w.spec.request, more))
        else:
            kinds = [events.Finished] * 8 + [events.NotStarted, events.Requeued]
            kind = self.random.choice(kinds)
            extra = (more,) if kind is events.Finished else ()
            self.send(kind(self.now, w.spec.request, *extra))

    def disturb(self) -> None:
        name = self.random.choice(sorted(REPLICAS))
        what = self.random.randrange(15)
        if what < 4:
            tenant = self.random.choice(sorted(TERMS))
            self.terms[tenant] = self.random.choice([TERMS[tenant], *CHANGES])
            self.send(events.TenantChanged(self.now, tenant, self.terms[tenant]))
        elif what < 6:
            self.take_away(name)
        elif what < 10:
            capacity = self.random.choice([REPLICAS[name], REPLICAS[name], *SMALLER])
            self.send(events.ReplicaUp(self.now, name, capacity))
        elif what < 12:
            self.interfere(WAITING)
        elif what < 14:
            self.now += self.random.choice([0.1, 1.0, 4.0])
            self.send(events.Ticked(self.now))
        elif self.random.random() < 0.5:
            self.degrade()
        else:
            self.restart()

    def take_away(self, name: str) -> None:
        """By any of the ways in which a pinned request loses the replica held for it."""
        kind = self.random.choice([events.ReplicaLost, events.ReplicaDrained, events.ReplicaUp])
        extra = (SMALLER[0],) if kind is events.ReplicaUp else ()
        self.send(kind(self.now, name, *extra))

    def interfere(self, place: str) -> None:
        """Say something about a request that is not at a replica; mostly that it is gone."""
        if requests := self.twins.requests(place):
            request = self.random.choice(requests).spec.request
            kinds = [events.NotStarted, events.Requeued, events.Cancelled, events.Cancelled]
            self.send(self.random.choice(kinds)(self.now, request))
            self.send(events.Emitted(self.now, request, 1))
            self.send(events.Corrected(self.now, request, 1, 1))
            self.send(events.Finished(self.now, request, 1))

    def degrade(self) -> None:
        self.send(events.DegradedOn(self.now, "clock"))
        self.send(events.DegradedOff(self.now, "clock"))

    def restart(self) -> None:
        self.epoch += 1
        self.send(events.Restarted(self.now, self.epoch))
        for name, capacity in REPLICAS.items():
            self.send(events.ReplicaUp(self.now, name, capacity))


@cache
def walked(seed: int, config: PoolConfig, *, fair: bool = True) -> Counter:
    """What a whole walk saw; every second one goes on from checkpoints now and then."""
    walk = Walk(seed, config, fair=fair)
    for _ in range(STEPS):
        walk.step()
        if seed % 2 and walk.random.random() < 0.03:
            walk.twins.reload()
    return walk.twins.seen


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_promise_holds_on_a_long_walk(seed, config) -> None:
    seen = walked(seed, config)
    assert sum(n for what, n in seen.items() if what.startswith("Granted")) > 50


def test_first_come_first_served_keeps_the_same_books() -> None:
    assert walked(1, CONFIG, fair=False)["Granted turn"] > 50


def test_a_checkpoint_after_every_event_changes_nothing() -> None:
    walk = Walk(0)
    for _ in range(150):
        walk.step()
        walk.twins.reload()


@pytest.mark.parametrize("what", OCCASIONS)
def test_the_walks_give_every_rule_its_occasion(what) -> None:
    assert sum(walked(seed, config)[what] for seed in range(SEEDS) for config in CONFIGS) >= 3


def test_only_the_latest_prefixes_are_known() -> None:
    twins, terms = Twins(PoolConfig()), TERMS["a"]
    twins.send(events.ReplicaUp(0.0, "r", ReplicaCapacity(1, 640)))

    def enqueue(name, *prefix) -> None:
        twins.send(events.Enqueued(0.0, name, "a", terms, 8, 1, prefix=prefix))

    for i in range(6):
        enqueue(f"long{i}", *range(1000 * i, 1000 * (i + 1)))
        twins.send(events.Finished(0.0, f"long{i}", 1))
    for name in ("running", "beside", "head"):
        enqueue(name)
    enqueue("too old", 6000 - 4096 - 1)
    enqueue("known", 6000 - 4096)
    twins.send(events.Finished(0.0, "running", 1))
    assert twins.twin.work["known"].where == "r"
    assert twins.twin.work["head"].where == WAITING


def test_a_pin_goes_where_the_fewest_blocks_are_missing() -> None:
    twins, room = Twins(replace(CONFIG, max_passes=0)), ReplicaCapacity(8, 1024)
    terms = TenantTerms(1000, 9, 720, 1)

    def enqueue(name, prompt_tokens) -> None:
        twins.send(events.Enqueued(0.0, name, "a", terms, prompt_tokens, 1))

    twins.send(events.ReplicaUp(0.0, "r", room))
    enqueue("large", 480)
    twins.send(events.ReplicaDrained(0.0, "r"))
    twins.send(events.ReplicaUp(0.0, "s", room))
    for name in ("one", "two", "three"):
        enqueue(name, 120)
    twins.send(events.ReplicaUp(0.0, "r", room))
    enqueue("larger", 720)
    assert twins.twin.work["larger"].hold == "s"
    assert twins.seen["Pinned"] == 1
