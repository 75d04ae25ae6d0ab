import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.block_pool import BlockPool, PoolExhausted
from engine.core.errors import IntegrityError

KEYS = [bytes([number]) * 32 for number in range(6)]


def test_blocks_come_out_in_order_and_anonymous_ones_are_reused_at_once():
    pool = BlockPool(5)
    assert pool.allocate(3) == [0, 1, 2]
    pool.publish(0, KEYS[0])
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
        pool.publish(block, key)
    pool.release([2, 1, 0])
    pool.hold([2])
    assert pool.eviction_order() == [1, 0]
    pool.release([2])
    assert pool.eviction_order() == [1, 0, 2]


def test_a_key_is_gone_once_its_block_is_reused():
    pool = BlockPool(1)
    pool.publish(pool.allocate(1)[0], KEYS[0])
    pool.release([0])
    assert pool.find(KEYS[0]) == 0
    pool.allocate(1)
    assert pool.find(KEYS[0]) is None


def test_releasing_a_block_nobody_holds_is_an_error():
    pool = BlockPool(2)
    with pytest.raises(IntegrityError):
        pool.release([0])


def test_integrity_notices_a_leak_and_an_unpublished_share():
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(IntegrityError, match="counts 1 holders, has 0"):
        pool.check_integrity({})
    pool.hold([0])
    with pytest.raises(IntegrityError, match="never published"):
        pool.check_integrity({0: 2})


class PoolAgainstTwin(RuleBasedStateMachine):
    """The pool beside a list in eviction order and two dictionaries."""

    @initialize(num_blocks=st.integers(1, 8))
    def make(self, num_blocks):
        self.pool = BlockPool(num_blocks)
        self.order = list(range(num_blocks))
        self.keys: dict[int, bytes] = {}
        self.refs = dict.fromkeys(range(num_blocks), 0)

    def held(self):
        return [block for block, count in self.refs.items() if count]

    @rule(count=st.integers(0, 9))
    def allocate(self, count):
        if count > len(self.order):
            with pytest.raises(PoolExhausted):
                self.pool.allocate(count)
            return
        taken, self.order = self.order[:count], self.order[count:]
        assert self.pool.allocate(count) == taken
        for block in taken:
            self.keys.pop(block, None)
            self.refs[block] = 1

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release(self, data):
        blocks = data.draw(st.lists(st.sampled_from(self.held()), unique=True))
        self.pool.release(blocks)
        for block in blocks:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.order.insert(len(self.order) if block in self.keys else 0, block)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data, key):
        unkeyed = [block for block in self.held() if block not in self.keys]
        if unkeyed:
            block = data.draw(st.sampled_from(unkeyed))
            self.pool.publish(block, key)
            if key not in self.keys.values():
                self.keys[block] = key

    @rule(key=st.sampled_from(KEYS))
    def hold_a_hit(self, key):
        hit = next((block for block, known in self.keys.items() if known == key), None)
        assert self.pool.find(key) == hit
        if hit is not None:
            self.pool.hold([hit])
            self.refs[hit] += 1
            self.order = [block for block in self.order if block != hit]

    @invariant()
    def agrees(self):
        assert self.pool.eviction_order() == self.order
        assert self.pool.num_cached == sum(block in self.keys for block in self.order)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_held == len(self.refs)
        self.pool.check_integrity(self.refs)


TestPoolAgainstTwin = PoolAgainstTwin.TestCase
TestPoolAgainstTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
