"""What the dispatcher keeps and looks at: no more than what is there, however long it runs."""

import gc
from itertools import count

import pytest

from fairness import events
from fairness.counters import Account
from fairness.dispatcher import Dispatcher
from fairness.grants import Granter
from fairness.ordering import LazyMinHeap
from fairness.policy import VtcPolicy
from fairness.types import PoolConfig, ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch

TERMS = TenantTerms(1_000, 4, 2_048, 512)
LARGER = TenantTerms(1_000, 8, 4_096, 1_024)


class Script:
    """A dispatcher with one replica, and short ways to send it requests."""

    def __init__(self, slots: int = 16) -> None:
        self.dispatcher = Dispatcher(PoolConfig(), VtcPolicy())
        self._names = count()
        self.dispatcher.apply(events.ReplicaUp(0.0, "r", ReplicaCapacity(slots, 1 << 20)))

    def enqueue(self, tenant: str, terms=TERMS, prompt=1, output=1, prefix=()) -> str:
        name = f"q{next(self._names)}"
        self.dispatcher.apply(
            events.Enqueued(0.0, name, tenant, terms, prompt, output, 1, 0, prefix)
        )
        return name

    def serve(self, tenant: str, prompt=1, output=1) -> None:
        name = self.enqueue(tenant, prompt=prompt, output=output)
        self.dispatcher.apply(events.Finished(0.0, name, output))


class Watched(list):
    """A list that counts how many of its items are looked at from Python."""

    looks = 0

    def __getitem__(self, index):
        Watched.looks += 1
        return super().__getitem__(index)

    def __iter__(self):
        for item in super().__iter__():
            Watched.looks += 1
            yield item


def test_a_tenant_that_comes_and_goes_leaves_no_account_behind() -> None:
    script = Script()
    script.enqueue("large", LARGER)  # stays first in the orders by size
    gc.collect()
    before = sum(type(one) is Account for one in gc.get_objects())
    for _ in range(500):
        script.serve("busy", prompt=2_000, output=500)  # the floor rises, so the other is forgotten
        script.serve("small")
    gc.collect()
    assert sum(type(one) is Account for one in gc.get_objects()) - before < 100


@pytest.mark.parametrize("many", [100, 10_000])
def test_a_grant_by_prefix_looks_at_few_of_a_long_queue(many: int) -> None:
    script = Script(slots=1)
    terms = TenantTerms(1_000, many, 2_048, 512)
    running = script.enqueue("t", terms)
    script.enqueue("t", terms)
    for index in range(many):
        script.enqueue("t", terms, prefix=(index,))
    account = script.dispatcher.pool.ledger.accounts["t"]
    account.waiting = Watched(account.waiting)
    Watched.looks = 0
    script.dispatcher.apply(events.Finished(0.0, running, 1))
    assert 0 < Watched.looks < 100


def test_requests_cancelled_behind_a_head_that_waits_are_let_go() -> None:
    script = Script(slots=1)
    for _ in range(3):
        script.enqueue("t")
    for _ in range(1_000):
        script.dispatcher.apply(events.Cancelled(0.0, script.enqueue("t")))
    account = script.dispatcher.pool.ledger.accounts["t"]
    assert account.num_waiting == 1
    assert len(account.waiting) < 100


def test_the_first_waiting_are_in_order_also_among_many_that_left() -> None:
    script = Script(slots=1)
    names = [script.enqueue("t") for _ in range(60)]
    for name in names[5::2]:
        script.dispatcher.apply(events.Cancelled(0.0, name))
    pool = script.dispatcher.pool
    first = pool.first_waiting(pool.ledger.accounts["t"], 16)
    waiting = [name for name in names if pool.tickets.get(name) and pool.tickets[name].stamp]
    assert [ticket.request for ticket in first] == waiting[:16]


def test_a_snapshot_changes_nothing_since_another_thread_may_take_it(monkeypatch) -> None:
    script = Script(slots=1)
    for tenant in ("a", "b", "c"):
        script.enqueue(tenant, LARGER if tenant == "b" else TERMS)
    script.dispatcher.apply(events.TenantChanged(0.0, "b", TERMS))

    def touched(_heap):
        raise AssertionError("a snapshot looked through an order, which tidies it")

    monkeypatch.setattr(LazyMinHeap, "least", touched)
    assert script.dispatcher.snapshot().bound.floor_lag == 2 * 2_048_000


def test_an_arrival_behind_a_misfit_is_not_paid_for_by_looking_at_every_tenant(monkeypatch) -> None:
    script = Script(slots=64)
    large = TenantTerms(1_000, 4, 1_800, 100)
    script.dispatcher.apply(events.ReplicaUp(0.0, "r", ReplicaCapacity(64, 10_000)))
    for tenant in range(300):
        script.enqueue(f"t{tenant:03}", large, prompt=1_800)
    looks = []
    placed = Granter._place
    monkeypatch.setattr(Granter, "_place", lambda self, t: looks.append(t) or placed(self, t))
    for tenant in range(100, 120):
        script.enqueue(f"t{tenant}", large, prompt=1_800)
    assert len(looks) < 20 * 5


def test_who_may_pass_is_looked_for_again_when_a_longer_prefix_that_fits_nowhere_leaves() -> None:
    watch = Watch(PoolConfig(growth_blocks=0))
    watch.replica_up("r", ReplicaCapacity(8, 640))
    watch.enqueued("known", "k", TERMS, 1, 1, prefix=(1, 2))
    watch.finished("known", 1)
    watch.enqueued("large", "a", TERMS, 500, 1)
    watch.enqueued("misfit", "b", TERMS, 400, 1)
    watch.enqueued("head", "c", TERMS, 300, 1)
    watch.enqueued("longer", "c", TERMS, 300, 1, prefix=(1, 2))
    watch.enqueued("short", "d", TERMS, 300, 1)
    watch.enqueued("shorter", "c", TERMS, 10, 1, prefix=(1,))
    (passed, overtaken, granted) = watch.cancelled("longer")
    assert (passed.request, overtaken.request) == ("misfit", "head")
    assert (granted.request, granted.reason) == ("shorter", "pass")
