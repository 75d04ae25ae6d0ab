"""The edge cases of counting, each under its name and decided as docs/fairness.md decides it.

What a dispatcher cannot see, such as preemption inside an engine, is tested where it is decided: in
what a report of tokens does to the charge.
"""

from fractions import Fraction

import pytest

from fairness import events
from fairness.types import PoolConfig, Prices, ReplicaCapacity, TenantTerms
from tests.fairness.checker import Watch
from tests.fairness.playing import ROOMY, UNIT, flying, queue, run, up

TERMS = TenantTerms(1000, 8, 100, 50)


@pytest.fixture
def watch() -> Watch:
    watch = Watch()
    up(watch, 2)
    return watch


def busy(watch: Watch, tenant: str = "z", many: int = 40) -> None:
    """Another tenant fills the pool, waits all the time and thereby raises the floor."""
    queue(watch, tenant, TERMS, many, prompt=10, output=10)


def until_one_flies(watch: Watch, tenant: str) -> str:
    """The tenant's request that is granted when requests of z have ended one by one."""
    while not flying(watch, tenant):
        watch.finished(flying(watch, "z")[0], 10)
    [name] = flying(watch, tenant)
    return name


def told(effects, kind) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_idle_return(watch) -> None:
    """Time away earns nothing: the counter rises to the floor."""
    queue(watch, "a", TERMS, 1, prompt=10)
    busy(watch)
    run(watch, "a", 1)
    for _ in range(6):
        run(watch, "z", 10)
    watch.enqueued("back", "a", TERMS, 10, 10)
    assert watch.account("a").counter >= watch.snapshot.floor > 0


def test_idle_test(watch) -> None:
    """Idle is who waits nowhere, also while it runs: its return is lifted all the same."""
    [running] = queue(watch, "a", TERMS, 1, prompt=10)
    busy(watch)
    for _ in range(6):
        run(watch, "z", 10)
    assert running in flying(watch, "a")
    assert not watch.tenant("a").backlogged
    floor = watch.snapshot.floor
    [lifted] = told(watch.enqueued("back", "a", TERMS, 10, 10), events.Lifted)
    assert (lifted.tenant, lifted.counter) == ("a", floor)


def test_queue_momentarily_empty(watch) -> None:
    """An empty queue keeps its debt, and the account with it, until the floor has caught up."""
    busy(watch)
    [name] = queue(watch, "a", TERMS, 1, prompt=100)
    for _ in range(3):
        run(watch, "z", 1)
    watch.finished(name, 50)
    debt = watch.tenant("a").counter
    assert debt == 200 * UNIT > watch.snapshot.floor
    [back] = queue(watch, "a", TERMS, 1, prompt=1)
    assert watch.tenant("a").counter == debt
    watch.cancelled(back)
    queue(watch, "z", TERMS, 40, prompt=10, output=10)
    while "a" in {tenant.tenant for tenant in watch.snapshot.tenants}:
        assert watch.snapshot.floor < debt
        run(watch, "z", 10)
    assert watch.snapshot.floor >= debt


def test_preempted_and_rerun(watch) -> None:
    """What an engine computes again is its own affair: the highest count of tokens is charged."""
    watch.enqueued("q", "a", TERMS, 40, 50)
    watch.corrected("q", 40, 0)
    for so_far in (20, 3, 11, 20, 21):
        watch.emitted("q", so_far)
    watch.corrected("q", 40, 0)
    assert watch.tenant("a").service_milli == UNIT * (40 + 2 * 21)
    watch.finished("q", 30)
    assert watch.live == {}


def test_preemption_victim_reentry(watch) -> None:
    """Sent back, it heads its tenant's queue; that tenant still waits for its turn."""
    [victim] = queue(watch, "a", TERMS, 1, prompt=100)
    queue(watch, "b", TERMS, 6, prompt=10, output=10)
    younger = queue(watch, "a", TERMS, 2, prompt=100)
    effects = watch.requeued(victim)
    assert {grant.tenant for grant in told(effects, events.Granted)} == {"b"}
    assert watch.account("a").head.spec.request == victim
    while watch.live[victim].waits:
        run(watch, "b", 10)
    assert all(watch.live[name].waits for name in younger)
    assert watch.tenant("a").service_milli == 100 * UNIT


def test_cached_input(watch) -> None:
    """Charged as computed at the grant; the hits that the engine reports are taken off, once."""
    [_, grant] = watch.enqueued("q", "a", TERMS, 100, 50)
    assert grant.charge_milli == 100 * UNIT
    watch.corrected("q", 100, 80)
    assert watch.tenant("a").service_milli == 20 * 1_000 + 80 * 100
    watch.corrected("q", 100, 80)
    watch.corrected("q", 100, 0)
    assert watch.tenant("a").service_milli == 28_000


def test_prefix_shared_across_tenants(watch) -> None:
    """Who comes first pays for computing it, who finds it pays for a hit; nothing is divided."""
    for name, hits in [("a", 0), ("b", 96)]:
        watch.enqueued(name, name, TERMS, 100, 50, 1, 7, (1, 2, 3))
        watch.corrected(name, 100, hits)
    assert watch.tenant("a").service_milli == 100 * UNIT
    assert watch.tenant("b").service_milli == 4_000 + 96 * 100


def test_cancelled_while_queued(watch) -> None:
    """No charge; when it was its tenant's last, the tenant is idle and the floor is kept."""
    busy(watch, many=6)
    run(watch, "z", 10)
    watch.enqueued("q", "a", TERMS, 100, 50)
    floor = watch.snapshot.floor
    [forgotten] = told(watch.cancelled("q"), events.Forgotten)
    assert (forgotten.tenant, forgotten.service_milli) == ("a", 0)
    assert watch.snapshot.floor == floor > 0
    run(watch, "z", 10)
    [grant] = told(watch.enqueued("late", "a", TERMS, 100, 50), events.Granted)
    assert grant.counter == watch.snapshot.floor >= floor


def test_cancelled_after_dispatch(watch) -> None:
    """What was computed and emitted stays charged; what never began is given back whole."""
    queue(watch, "a", TERMS, 3, prompt=100)
    begun, silent, held_up = flying(watch, "a")
    watch.corrected(begun, 100, 60)
    watch.finished(begun, 7)
    watch.corrected(silent, 100, 0)
    watch.not_started(silent)
    assert watch.tenant("a").service_milli == 40_000 + 6_000 + 14_000 + 100 * UNIT
    watch.finished(held_up, 0)
    assert watch.service["a"] == 60_000 + 100 * UNIT


def test_upstream_fails_before_first_byte(watch) -> None:
    """It goes elsewhere under its charge; if it ends there too, all is given back, and no lift."""
    busy(watch)
    queue(watch, "a", TERMS, 6, prompt=100)
    name = until_one_flies(watch, "a")
    for _ in range(3):
        run(watch, "z", 10)
    charged = watch.tenant("a").service_milli
    watch.requeued(name)
    while watch.live[name].waits:
        run(watch, "z", 10)
    assert watch.tenant("a").service_milli == charged
    assert watch.tenant("a").backlogged
    before = watch.tenant("a").counter
    effects = watch.not_started(name)
    assert not told(effects, events.Lifted)
    granted = sum(g.charge_milli for g in told(effects, events.Granted) if g.tenant == "a")
    assert watch.tenant("a").counter == before - 100 * UNIT + granted


def test_engine_crash_mid_stream(watch) -> None:
    """What was delivered stays charged, what had not begun goes on, or else is refunded."""
    names = queue(watch, "a", TERMS, 3, prompt=100)
    watch.emitted(names[0], 9)
    watch.replica_lost("r")
    watch.finished(names[0], 9)
    assert watch.tenant("a").service_milli == 300 * UNIT + 18 * UNIT
    watch.replica_up("s", ReplicaCapacity(2, ROOMY))
    assert sorted(flying(watch, "a")) == sorted(names[1:])
    assert watch.tenant("a").service_milli == 318 * UNIT
    watch.not_started(names[1])
    assert watch.tenant("a").service_milli == 218 * UNIT


def test_n_greater_than_one(watch) -> None:
    """One prompt, the output of all sequences, and as many places in flight."""
    watch.enqueued("q", "a", TERMS, 100, 50, 3)
    assert watch.tenant("a").in_flight == 3
    watch.emitted("q", 3 * 20)
    assert watch.tenant("a").service_milli == UNIT * (100 + 2 * 60)
    watch.finished("q", 3 * 50)
    assert watch.service["a"] == UNIT * (100 + 2 * 150)


def test_speculative_decoding(watch) -> None:
    """Several tokens in a step are so many tokens; drafts that were rejected are nobody's."""
    watch.enqueued("q", "a", TERMS, 10, 50)
    for accepted in (4, 5, 9, 9, 13):
        watch.emitted("q", accepted)
    assert watch.tenant("a").service_milli == UNIT * (10 + 2 * 13)


def test_huge_max_tokens(watch) -> None:
    """Never charged: the counter moves with what is emitted, and so does the order."""
    wide = TenantTerms(1000, 8, 100, 100_000)
    watch.enqueued("q", "a", wide, 10, 100_000)
    assert watch.tenant("a").service_milli == 10 * UNIT
    watch.finished("q", 3)
    assert watch.service["a"] == UNIT * (10 + 2 * 3)


def test_thinking_tokens_and_client_retries(watch) -> None:
    """Thinking is output like any other; a client that asks again asks for new work."""
    watch.enqueued("q", "a", TERMS, 10, 50)
    watch.finished("q", 50)
    watch.enqueued("again", "a", TERMS, 10, 50)
    watch.corrected("again", 10, 0)
    assert watch.tenant("a").service_milli == UNIT * (10 + 2 * 50 + 10)


def test_no_output(watch) -> None:
    """Without output the prompt alone is charged, never nothing: a counter always moves."""
    busy(watch)
    for i in range(3):
        before = watch.service.get("a", 0)
        watch.enqueued(f"q{i}", "a", TERMS, 1, 0)
        while watch.live[f"q{i}"].waits:
            run(watch, "z", 10)
        assert watch.service["a"] == before + UNIT
        watch.corrected(f"q{i}", 1, 1)
        assert watch.service["a"] == before + 100
        watch.enqueued(f"w{i}", "a", TERMS, 1, 0)
        watch.finished(f"q{i}", 0)
        watch.cancelled(f"w{i}")
    with pytest.raises(ValueError, match="a prompt token"):
        events.Enqueued(0.0, "none", "a", TERMS, 0, 0)


@pytest.mark.parametrize("weight", [250, 3000])
def test_weight_change(watch, weight) -> None:
    """Lead and debt in tokens stay; later charges and refunds use the weight then in force."""
    busy(watch)
    queue(watch, "a", TERMS, 6, prompt=100)
    name = until_one_flies(watch, "a")
    floor, account = watch.snapshot.floor, watch.account("a")
    lag = account.raw - floor * 1000
    watch.tenant_changed("a", TenantTerms(weight, 8, 100, 50))
    assert account.raw - floor * weight == lag
    assert watch.tenant("a").counter == floor + lag // weight
    raw = account.raw
    watch.emitted(name, 5)
    assert account.raw == raw + 1000 * 10 * UNIT
    assert watch.tenant("a").counter == (raw + 1000 * 10 * UNIT) // weight


def test_new_tenant(watch) -> None:
    """It starts at the floor, like one that comes back."""
    busy(watch)
    for _ in range(5):
        run(watch, "z", 10)
    floor = watch.snapshot.floor
    watch.enqueued("q", "a", TERMS, 10, 10)
    assert watch.account("a").counter == floor > 0


def test_many_keys_per_tenant(watch) -> None:
    """Only the tenant counts: whoever spreads its requests over many ids and keys gains nothing."""
    for i in range(30):
        watch.enqueued(f"rotated-{i}", "a", TERMS, 10, 10, affinity=i)
        watch.enqueued(f"b{i}", "b", TERMS, 10, 10)
    for _ in range(10):
        run(watch, "a", 10)
        run(watch, "b", 10)
    assert abs(watch.service["a"] - watch.service["b"]) <= 3 * 30 * UNIT
    assert {tenant.tenant for tenant in watch.snapshot.tenants} == {"a", "b"}


def test_overflow() -> None:
    """Counters are integers without end, and the remainder of a division is carried for ever."""
    prices = Prices(uncached=10**17 + 1, cached=10**16, output=3 * 10**17)
    watch = Watch(PoolConfig(prices=prices))
    up(watch, 2)
    terms = TenantTerms(7, 8, 100, 50)
    queue(watch, "b", TenantTerms(1000, 1, 1, 1), 2)
    charged = 0
    for i in range(200):
        watch.enqueued(f"q{i}", "a", terms, 1 + i % 3, 1)
        watch.finished(f"q{i}", i % 2)
        charged += prices.uncached * (1 + i % 3) + prices.output * (i % 2)
    assert watch.tenant("a").service_milli == charged
    assert watch.tenant("a").counter == Fraction(1000 * charged, 7) // 1 > 2**63


def test_rate_of_charge_updates() -> None:
    """Reports may come token by token or in batches: what is charged in the end is the same."""
    counters = set()
    for stride in (1, 4, 50):
        watch = Watch()
        up(watch, 2)
        for i in range(2):
            watch.enqueued(f"q{i}", "ab"[i], TERMS, 10, 50)
            for so_far in range(stride, 51, stride):
                watch.emitted(f"q{i}", so_far)
            watch.enqueued(f"w{i}", "ab"[i], TERMS, 10, 50)
        watch.finished("q0", 50)
        counters.add((watch.service["a"], watch.account("a").counter))
    assert counters == {(UNIT * (10 + 100 + 10), UNIT * 120)}
