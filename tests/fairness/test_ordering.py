"""The lazy heap against a plain minimum."""

from hypothesis import given
from hypothesis import strategies as st

from fairness.ordering import LazyMinHeap

STEPS = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 9)), max_size=60)


@given(STEPS)
def test_the_least_is_the_minimum_of_all_candidates(steps) -> None:
    keys: dict[str, int | None] = {}
    heap = LazyMinHeap(keys.get)
    for member, key in steps:
        before = keys.get(member)
        keys[member] = key
        if key is not None and (before is None or key < before):
            heap.offer(member)  # a rise or a withdrawal needs no notice
        candidates = [(k, m) for m, k in keys.items() if k is not None]
        assert heap.least() == (min(candidates)[1] if candidates else None)
