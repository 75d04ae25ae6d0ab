from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.block_pool import BlockPool, PoolExhausted
from engine.core.errors import IntegrityError

KEYS = [bytes([number]) * 32 for number in range(9)]


def fill(
    pool: BlockPool, owner: str, count: int, weight: int = 1, namespace: str = ""
) -> list[int]:
    """Publish `count` blocks of the owner and let them go, first to last; they are cached then."""
    blocks = pool.allocate(count, owner, weight)
    for block in blocks:
        pool.publish(block, f"{owner}/{namespace}/{block}".encode(), namespace)
    pool.release(blocks)
    return blocks


def test_blocks_come_out_in_order_and_free_ones_are_reused_at_once():
    pool = BlockPool(5)
    assert pool.allocate(3) == [0, 1, 2]
    pool.publish(0, KEYS[0], "")
    pool.release([2, 1, 0])
    assert pool.eviction_order() == [1, 2, 3, 4, 0]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (4, 1, 0)


def test_a_failed_allocation_changes_nothing():
    pool = BlockPool(4)
    pool.allocate(2)
    before = pool.eviction_order()
    with pytest.raises(PoolExhausted):
        pool.allocate(3)
    assert pool.eviction_order() == before
    assert [pool.ref_count(block) for block in range(4)] == [1, 1, 0, 0]


def test_a_revived_block_leaves_the_eviction_order_and_returns_as_newest():
    pool = BlockPool(3)
    for block, key in zip(pool.allocate(3), KEYS, strict=False):
        pool.publish(block, key, "")
    pool.release([2, 1, 0])
    pool.hold([2])
    assert pool.eviction_order() == [1, 0]
    pool.release([2])
    assert pool.eviction_order() == [1, 0, 2]


def test_a_key_is_gone_once_its_block_is_reused():
    pool = BlockPool(1)
    pool.publish(pool.allocate(1)[0], KEYS[0], "")
    pool.release([0])
    assert pool.find(KEYS[0]) == 0
    pool.allocate(1)
    assert pool.find(KEYS[0]) is None


def test_misuse_is_an_error():
    pool = BlockPool(2)
    with pytest.raises(IntegrityError, match="nobody holds it"):
        pool.release([0])
    with pytest.raises(IntegrityError, match="is free"):
        pool.hold([0])
    with pytest.raises(IntegrityError, match="cannot be published"):
        pool.publish(0, KEYS[0], "")
    with pytest.raises(IntegrityError, match="cannot be pinned"):
        pool.pin([0])
    with pytest.raises(IntegrityError, match="has no pin"):
        pool.unpin([0])


def test_integrity_notices_a_leak_and_a_wrong_pin():
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(IntegrityError, match="counts 1 holders, has 0"):
        pool.check_integrity({}, {})
    with pytest.raises(IntegrityError, match="number of pins"):
        pool.check_integrity({0: 1}, {1: 1})
    pool.check_integrity({0: 1}, {})


def test_integrity_notices_a_miscounted_owner():
    pool = BlockPool(4)
    fill(pool, "a", 2)
    pool.check_integrity({}, {})
    pool._blocks[0].owner.num_idle += 1
    with pytest.raises(IntegrityError, match="miscounted"):
        pool.check_integrity({}, {})


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_with_one_owner_the_least_recently_used_goes_first(uses):
    pool = BlockPool(10)
    order = fill(pool, "one", 10)
    for block, again in uses:
        pool.hold([block] * (1 + again))
        pool.release([block] * (1 + again))
        order = [other for other in order if other != block] + [block]
    assert pool.eviction_order() == order == pool.allocate(10, "one")


def test_the_owner_with_the_most_cached_blocks_loses_its_oldest():
    pool = BlockPool(10)
    few, many = fill(pool, "few", 3), fill(pool, "many", 7)
    assert pool.allocate(4) == many[:4]
    # Three each now: whose oldest block is older goes first, then the other has more.
    assert pool.allocate(4) == [few[0], many[4], few[1], many[5]]


def test_what_an_owner_holds_counts_before_it_takes_a_neighbours():
    pool = BlockPool(10)
    small, flood = fill(pool, "small", 4), fill(pool, "flood", 6)
    held = pool.allocate(4, "flood")
    assert held == flood[:4]
    # The flood has 2 idle blocks against 4, but 6 in all, and 8 with the two it asks for.
    assert pool.allocate(2, "flood") == flood[4:]
    pool.release(held)  # never published, so free again, and nobody's
    assert pool.allocate(5, "third")[-1] == small[0]
    pool.check_integrity({**dict.fromkeys(flood, 1), small[0]: 1}, {})


def test_weight_is_a_right_to_that_many_times_more():
    pool = BlockPool(12)
    heavy, light = fill(pool, "heavy", 8, weight=3), fill(pool, "light", 4)
    assert pool.allocate(2) == light[:2]  # 8 / 3 against 4, then 3
    assert pool.allocate(3) == heavy[:3]  # 8 / 3 against 2; at 2 against 2 heavy's is still older
    assert pool.allocate(1) == light[2:3]


def test_a_changed_weight_counts_from_the_next_eviction_on():
    pool = BlockPool(6)
    first = fill(pool, "first", 3)
    second = fill(pool, "second", 3)
    assert pool.allocate(1) == first[:1]
    held = pool.allocate(1, "second", 4)
    assert held == first[1:2]  # 2 / 1 against 4 / 4
    assert pool.allocate(1, "first", 9) == second[:1]  # 2 / 9 against 4 / 4
    assert pool.allocate(1, "first") == second[1:2]  # 3 / 9 against 3 / 4: no weight, no change


def test_an_owner_gains_nothing_by_many_namespaces():
    pool = BlockPool(8)
    one = fill(pool, "one", 3, namespace="n")
    many = [fill(pool, "many", 1, namespace=str(number))[0] for number in range(5)]
    assert pool.allocate(2) == many[:2]
    assert all(pool.find(f"one/n/{block}".encode()) == block for block in one)


def test_ten_thousand_owners_come_and_go_without_a_trace():
    pool = BlockPool(64)
    for number in range(10_000):
        fill(pool, str(number), 1 + number % 3)
    assert pool.num_owners <= 64
    assert len(pool._eviction._heap) <= 2 * 64 + 20
    pool.check_integrity({}, {})
    blocks = pool.allocate(64)
    assert (pool.num_owners, pool.num_cached) == (1, 0)
    pool.release(blocks)
    for number in range(10_000):  # erased, never evicted: nothing may wait for an eviction
        fill(pool, str(number), 1, namespace="n")
        pool.erase("n")
    assert (pool.num_owners, len(pool._eviction._stale)) == (0, 0)


def test_an_owner_that_changes_between_evictions_leaves_nothing_behind():
    pool = BlockPool(32)
    small = fill(pool, "small", 1)
    fill(pool, "large", 31)
    for _ in range(1_000):  # the large owner never shrinks to where small's old ranks would surface
        fill(pool, "large", 1)
        pool.hold(small)
        pool.release(small)
    assert pool.find(f"small//{small[0]}".encode()) == small[0]
    assert len(pool._eviction._heap) <= 2 * 2 + 20
    pool.check_integrity({}, {})


def test_ten_thousand_owners_at_once_are_evicted_largest_share_first():
    pool = BlockPool(30_000)
    for number in range(10_000):
        fill(pool, str(number), 1 + number % 5, weight=1 + number % 5)
    taken = pool.allocate(30_000)
    assert sorted(taken) == list(range(30_000))
    # All shares are 1, so the oldest goes, and then its owner's share is the smaller one.
    assert taken[:10_000] == [
        15 * (number // 5) + number % 5 * (number % 5 + 1) // 2 for number in range(10_000)
    ]


def test_a_pinned_block_is_cached_but_never_evicted():
    pool = BlockPool(6)
    blocks = fill(pool, "a", 4)
    pool.pin(blocks[:2])
    assert (pool.num_free, pool.num_cached, pool.num_idle, pool.num_pinned) == (2, 4, 4, 2)
    with pytest.raises(PoolExhausted):
        pool.allocate(5)
    assert set(pool.allocate(4)).isdisjoint(blocks[:2])
    pool.hold(blocks[:1])
    assert (pool.num_held, pool.num_pinned) == (5, 2)
    assert not pool.is_last_hold(blocks[0])
    pool.release(blocks[:1])
    assert pool.num_idle == 0
    assert pool.unpin(blocks[:2]) == 2
    assert pool.eviction_order() == blocks[:2]


class NaivePool:
    """Lists and dictionaries, searched from end to end."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.idle: list[int] = []  # cached, unheld, unpinned; oldest first
        self.keys: dict[int, bytes] = {}
        self.owners: dict[int, str] = {}  # of all blocks that are not free
        self.namespaces: dict[int, str] = {}
        self.weights: dict[str, int] = {}
        self.refs = dict.fromkeys(range(num_blocks), 0)
        self.pins = dict.fromkeys(range(num_blocks), 0)

    def order(self, taker: str = "", count: int = 0) -> list[int]:
        """Who goes next, if `taker` asks for `count` blocks."""
        idle, order, owners = list(self.idle), list(self.free), dict(self.owners)
        while idle:
            owned = Counter(owners.values())
            owned[taker] += count

            def before(block: int, owned=owned, idle=idle):
                owner = self.owners[block]
                return -owned[owner] / self.weights[owner], idle.index(block)

            order.append(min(idle, key=before))
            idle.remove(order[-1])
            del owners[order[-1]]
        return order

    def forget(self, block: int) -> None:
        for known in (self.keys, self.owners, self.namespaces):
            known.pop(block, None)
        self.weights = {name: self.weights[name] for name in set(self.owners.values())}

    def settle(self, block: int) -> None:
        """Put a block that nobody holds where it belongs."""
        if block not in self.keys:
            self.free.insert(0, block)
            self.forget(block)
        elif not self.pins[block]:
            self.idle.append(block)

    def disturb(self, block: int) -> None:
        if block in self.idle:
            self.idle.remove(block)


class PoolAgainstTwin(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(1, 12))
    def make(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.twin = NaivePool(num_blocks)

    def held(self):
        return [block for block, count in self.twin.refs.items() if count]

    def pinned(self):
        return [block for block, count in self.twin.pins.items() if count]

    @rule(
        count=st.integers(0, 12),
        owner=st.sampled_from("abc"),
        weight=st.sampled_from([None, 1, 2, 8]),
    )
    def allocate(self, count, owner, weight):
        twin = self.twin
        if count > len(twin.order()):
            with pytest.raises(PoolExhausted):
                self.pool.allocate(count, owner, weight)
            return
        if count:
            twin.weights[owner] = weight or twin.weights.get(owner, 1)
        taken = twin.order(owner, count)[:count]
        assert self.pool.allocate(count, owner, weight) == taken
        for block in taken:
            twin.disturb(block)
            twin.free = [free for free in twin.free if free != block]
            twin.keys.pop(block, None)
            twin.namespaces.pop(block, None)
            twin.owners[block] = owner
            twin.refs[block] = 1
        twin.weights = {name: twin.weights[name] for name in set(twin.owners.values())}

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release(self, data):
        blocks = data.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.release(blocks)
        for block in blocks:
            self.twin.refs[block] -= 1
            if self.twin.refs[block] == 0:
                self.twin.settle(block)

    @precondition(lambda self: self.held())
    @rule(
        data=st.data(),
        key=st.sampled_from(KEYS),
        namespace=st.sampled_from("xy"),
    )
    def publish(self, data, key, namespace):
        unkeyed = [block for block in self.held() if block not in self.twin.keys]
        if unkeyed:
            block = data.draw(st.sampled_from(unkeyed))
            self.pool.publish(block, key, namespace)
            if key not in self.twin.keys.values():
                self.twin.keys[block] = key
                self.twin.namespaces[block] = namespace

    @rule(key=st.sampled_from(KEYS))
    def hold_a_hit(self, key):
        hit = next((block for block, known in self.twin.keys.items() if known == key), None)
        assert self.pool.find(key) == hit
        if hit is not None:
            assert self.pool.is_idle(hit) == (hit in self.twin.idle)
            self.pool.hold([hit])
            self.twin.disturb(hit)
            self.twin.refs[hit] += 1

    @precondition(lambda self: self.twin.keys)
    @rule(data=st.data())
    def pin(self, data):
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.twin.keys)), unique=True))
        self.pool.pin(blocks)
        for block in blocks:
            self.twin.disturb(block)
            self.twin.pins[block] += 1

    @precondition(lambda self: self.pinned())
    @rule(data=st.data())
    def unpin(self, data):
        blocks = data.draw(st.lists(st.sampled_from(self.pinned()), unique=True))
        freed = [b for b in blocks if self.twin.pins[b] == 1 and not self.twin.refs[b]]
        assert self.pool.unpin(blocks) == len(freed)
        for block in blocks:
            self.twin.pins[block] -= 1
            if block in freed:
                self.twin.settle(block)

    @rule(namespace=st.sampled_from("xy"))
    def erase(self, namespace):
        erased = [block for block in self.twin.idle if self.twin.namespaces[block] == namespace]
        assert self.pool.erase(namespace) == len(erased)
        for block in erased:
            self.twin.disturb(block)
            self.twin.forget(block)
        self.twin.free = sorted(erased) + self.twin.free

    @invariant()
    def agrees(self):
        pool, twin = self.pool, self.twin
        assert pool.eviction_order() == twin.order()
        assert (pool.num_free, pool.num_idle) == (len(twin.free), len(twin.order()))
        assert pool.num_pinned == len(self.pinned())
        assert pool.num_cached == sum(twin.refs[block] == 0 for block in twin.keys)
        assert pool.num_free + pool.num_cached + pool.num_held == len(twin.refs)
        assert pool.num_owners == len(set(twin.owners.values()))
        assert all(
            pool.is_last_hold(block) == (twin.refs[block] == 1 and not twin.pins[block])
            for block in twin.refs
        )
        pool.check_integrity(twin.refs, twin.pins)


TestPoolAgainstTwin = PoolAgainstTwin.TestCase
TestPoolAgainstTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
