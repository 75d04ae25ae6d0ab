"""The lazy heap against a plain minimum, and what it keeps of those that are gone."""

import gc
import weakref
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from fairness.ordering import LazyMinHeap


@dataclass(eq=False)
class Member:
    """What the heap asks of an account; two may be of one tenant, one after the other."""

    tenant: str
    serial: int
    key: int | None = None


MEMBERS = st.integers(0, 5)
STEPS = st.lists(st.tuples(MEMBERS, st.none() | st.integers(0, 9)), max_size=60)


@given(STEPS)
def test_the_least_is_the_minimum_of_all_candidates(steps) -> None:
    members = [Member("abcd"[serial % 4], serial) for serial in range(6)]
    heap = LazyMinHeap(lambda member: member.key)
    for index, key in steps:
        member, before = members[index], members[index].key
        member.key = key
        if key is not None and (before is None or key < before):
            heap.offer(member)  # a rise or a withdrawal needs no notice
        candidates = [(m.key, m.tenant, m.serial, m) for m in members if m.key is not None]
        assert heap.least() is (min(candidates)[3] if candidates else None)


def test_nothing_is_kept_of_members_that_were_dropped() -> None:
    first = Member("a", 0, key=0)
    heap = LazyMinHeap(lambda member: member.key)
    heap.offer(first)
    kept = []
    for serial in range(1, 1_000):
        member = Member("b", serial, key=5)
        heap.offer(member)
        member.key = None
        heap.drop(member)
        kept.append(weakref.ref(member))
    del member
    gc.collect()
    assert sum(ref() is not None for ref in kept) < 100
    assert heap.least() is first
