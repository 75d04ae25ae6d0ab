"""Page groups: what a sliding window needs, what it lets go, and what is found again."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.block_hash import group_key
from engine.core.request import NO_BLOCK
from engine.core.windows import first_needed_block, longest_prefix
from tests.engine.core.cache_rig import CacheRig, cache_config, request


@given(st.integers(0, 70), st.none() | st.integers(1, 40), st.integers(1, 9))
def test_the_first_needed_block_holds_the_first_position_attended_to(position, window, size):
    attended = [p for p in range(position + 1) if window is None or p > position - window]
    assert first_needed_block(position, window, size) == attended[0] // size


@given(
    st.lists(st.none() | st.integers(1, 12), min_size=1, max_size=3),
    st.integers(0, 8),
    st.integers(1, 4),
    st.data(),
)
def test_the_longest_prefix_is_the_longest_that_lacks_nothing(windows, num_keys, size, data):
    keys = [bytes([index]) * 32 for index in range(num_keys)]
    places = [(group, index) for group in range(len(windows)) for index in range(num_keys)]
    gone = data.draw(st.sets(st.sampled_from(places), max_size=6)) if places else set()
    blocks = {
        group_key(keys[index], group): 100 * group + index
        for group, index in places
        if (group, index) not in gone
    }

    def needed(group: int, index: int, length: int) -> bool:
        position, window = length * size, windows[group]
        return window is None or (index + 1) * size - 1 > position - window

    longest = max(
        length
        for length in range(num_keys + 1)
        if not any(index < length and needed(group, index, length) for group, index in gone)
    )
    expected = tuple(
        [
            100 * group + index if needed(group, index, longest) else NO_BLOCK
            for index in range(longest)
        ]
        for group in range(len(windows))
    )
    assert longest_prefix(blocks.get, keys, windows, size) == expected


def test_a_windowed_group_keeps_only_its_window_however_long_the_output():
    rig = CacheRig(cache_config(20, windows=(40,), block_size=8, max_model_len=1000))
    wanted = rig.run(request("long", range(60)))
    held = set()
    for _ in range(400):
        assert rig.compute(wanted)
        held.add(rig.pool.num_held)
    assert max(held) <= 40 // 8 + 1  # 460 tokens would be 58 blocks
    assert wanted.block_tables[0].count(NO_BLOCK) == 58 - rig.pool.num_held
    rig.free(wanted)
    assert rig.pool.num_held == 0


def test_groups_are_given_blocks_together_or_not_at_all():
    rig = CacheRig(cache_config(5, windows=(None, 100), block_size=4, max_model_len=100))
    assert rig.config.max_sequence_tokens == 8
    wanted = rig.run(request("grows", range(8)))
    before = rig.state()
    assert rig.pool.num_idle == 1
    assert not rig.compute(wanted)  # it needs two
    assert rig.state() == before
    assert [len(table) for table in wanted.block_tables] == [2, 2]


def test_a_chunk_longer_than_the_window_is_published_before_it_is_let_go():
    rig = CacheRig(cache_config(40, windows=(8, None), block_size=4))
    wanted = rig.run(request("whole", range(60)))
    assert wanted.block_tables[0] == [NO_BLOCK] * 13 + wanted.block_tables[0][13:]
    assert rig.pool.num_cached == 13
    rig.free(wanted)
    assert rig.pool.num_cached == 30  # its tokens are 15 blocks, in two groups
    for length in (60, 37, 20, 5):  # the blocks for every shorter prefix are there too
        shorter = request(f"first {length}", range(length))
        rig.admit(shorter)
        assert shorter.num_computed_tokens == (length - 1) // 4 * 4
        rig.compute(shorter)  # the runner checks what it reads
