"""Where a grant goes: credit first, then the prefix's own replica unless it is too loaded."""

from collections import Counter

from fairness.counters import Ticket
from fairness.credits import Replica
from fairness.placement import place
from fairness.types import PoolConfig, ReplicaCapacity

CONFIG = PoolConfig()


def ticket(name="q", prompt=10, sequences=1, affinity=0) -> Ticket:
    return Ticket(name, "t", 0, 0.0, prompt, 5, sequences, affinity, (), prompt, 0, 5)


def replica(name: str, in_flight: int = 0, slots: int = 100, kv_tokens: int = 1 << 20) -> Replica:
    one = Replica(name, ReplicaCapacity(slots, kv_tokens))
    for i in range(in_flight):
        one.hold(ticket(f"{name}{i}"))
    return one


def test_without_a_prefix_the_least_loaded_goes_ties_by_name() -> None:
    assert place([replica("b", 2), replica("c", 1), replica("a", 1)], ticket(), CONFIG).id == "a"


def test_nothing_goes_to_a_replica_that_drains() -> None:
    one = replica("a")
    one.accepting = False
    assert place([one], ticket(), CONFIG) is None


def test_a_prefix_stays_with_its_replica_up_to_a_quarter_above_the_mean() -> None:
    replicas = [replica(name) for name in "abcd"]
    seen = Counter()
    for i in range(40):
        chosen = place(replicas, ticket(f"q{i}", affinity=7), CONFIG)
        chosen.hold(ticket(f"q{i}", affinity=7))
        seen[chosen.id] += 1
    [(_, most), *_] = seen.most_common()
    assert most == max(r.in_flight for r in replicas)
    assert 10 < most <= 14


def test_prefixes_spread_over_replicas_and_only_a_lost_ones_move() -> None:
    replicas = [replica(name) for name in "abcd"]
    homes = {k: place(replicas, ticket(affinity=k), CONFIG).id for k in range(1, 401)}
    assert all(60 < n < 140 for n in Counter(homes.values()).values())
    fewer = [r for r in replicas if r.id != "c"]
    for k, home in homes.items():
        moved = place(fewer, ticket(affinity=k), CONFIG).id
        assert home in {moved, "c"}


def test_each_sequence_holds_whole_blocks_with_room_for_its_next_token() -> None:
    assert ticket(prompt=15).num_blocks(16) == 1
    assert ticket(prompt=16).num_blocks(16) == 2
    assert ticket(prompt=16, sequences=3).num_blocks(16) == 6


def test_growth_room_is_kept_except_on_an_empty_replica() -> None:
    one = replica("a", slots=4, kv_tokens=128)
    assert one.fits(ticket(prompt=127), CONFIG)
    assert not one.fits(ticket(prompt=128), CONFIG)
    one.hold(ticket("first", prompt=15))
    # 8 blocks: 1 held, 1 of growth for each of the two sequences, 5 left.
    assert one.fits(ticket(prompt=79), CONFIG)
    assert not one.fits(ticket(prompt=80), CONFIG)


def test_look_ahead_is_one_sequence_beyond_the_slots() -> None:
    one = replica("a", in_flight=4, slots=4)
    assert one.fits(ticket(), CONFIG)
    assert not one.fits(ticket(sequences=2), CONFIG)
    one.hold(ticket("ahead"))
    assert not one.fits(ticket(), CONFIG)
