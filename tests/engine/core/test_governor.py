"""The thrash governor, each sentence of its contract."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from engine.core.governor import ThrashGovernor
from tests.engine.core.rig import Rig, config, request, tokens


def governor(num_blocks=1000, **changes):
    return ThrashGovernor(config(num_blocks, **({"reserve": 0.02} | changes)))


def window(governed, computed, recomputed):
    """One window of 256 steps in which the last one computes these tokens."""
    for _ in range(255):
        governed.observe(0, 0)
    governed.observe(computed, recomputed)


def test_it_starts_at_the_default():
    assert governor().reserve_blocks == 20


def test_more_than_one_percent_recomputed_in_a_window_raises_it_by_one_point():
    governed = governor()
    window(governed, 10_000, 100)
    assert governed.reserve_blocks == 20  # one percent is not more than one percent
    window(governed, 10_000, 101)
    assert governed.reserve_blocks == 30
    window(governed, 10_000, 101)
    assert governed.reserve_blocks == 40


def test_it_moves_only_at_the_end_of_a_window_and_each_window_counts_for_itself():
    governed = governor()
    for _ in range(255):
        governed.observe(100, 100)
        assert governed.reserve_blocks == 20
    governed.observe(100, 100)
    assert governed.reserve_blocks == 30
    for _ in range(256):
        governed.observe(100, 1)  # exactly one percent, whatever came before
    assert governed.reserve_blocks == 30


def test_it_never_exceeds_the_cap():
    governed = governor(max_reserve=0.05)
    for expected in (30, 40, 50, 50, 50):
        window(governed, 1, 1)
        assert governed.reserve_blocks == expected


def test_a_cap_between_two_points_is_reached_exactly():
    governed = governor(max_reserve=0.034)
    window(governed, 1, 1)
    window(governed, 1, 1)
    assert governed.reserve_blocks == 34


def test_512_clean_steps_in_a_row_lower_it_by_half_a_point_and_never_below_the_default():
    governed = governor()
    window(governed, 1, 1)
    for expected in (25, 20, 20):
        before = governed.reserve_blocks
        for _ in range(511):
            governed.observe(100, 0)
            assert governed.reserve_blocks == before
        governed.observe(100, 0)
        assert governed.reserve_blocks == expected


def test_a_single_recomputed_token_starts_the_count_of_clean_steps_again():
    governed = governor()
    window(governed, 1, 1)
    for _ in range(511):
        governed.observe(1000, 0)
    governed.observe(1000, 1)
    for _ in range(511):
        governed.observe(1000, 0)
        assert governed.reserve_blocks == 30
    governed.observe(1000, 0)
    assert governed.reserve_blocks == 25


def test_from_the_cap_it_falls_at_once():
    governed = governor(max_reserve=0.035)
    for _ in range(5):
        window(governed, 1, 1)
    assert governed.reserve_blocks == 35
    for _ in range(512):
        governed.observe(1, 0)
    assert governed.reserve_blocks == 30


def test_a_highest_reserve_that_is_not_above_the_default_turns_it_off():
    for highest in (0.02, 0):
        governed = governor(max_reserve=highest)
        for _ in range(20):
            window(governed, 1, 1)
        assert governed.reserve_blocks == 20


@given(
    num_blocks=st.integers(1, 5000),
    moves=st.lists(st.booleans(), max_size=60),
    reserve=st.sampled_from([0, 0.02, 0.07]),
    highest=st.sampled_from([0, 0.02, 0.1, 0.33]),
)
def test_the_blocks_are_the_exact_share_rounded_up(num_blocks, moves, reserve, highest):
    settings = config(num_blocks, reserve=reserve, max_reserve=highest)
    governed, points = ThrashGovernor(settings), Fraction(0)
    low, high = settings.reserve_blocks, settings.max_reserve_blocks
    for rises in moves:
        before = governed.reserve_blocks
        if rises:
            window(governed, 1, 1)
            points += 1
        else:
            for _ in range(512):
                governed.observe(1, 0)
            points -= Fraction(1, 2)
        assert low <= governed.reserve_blocks <= max(low, high)
        assert (governed.reserve_blocks >= before) if rises else (governed.reserve_blocks <= before)
        points = max(points, Fraction(0))
        uncapped = low - (-points * num_blocks) // 100
        if uncapped <= high:
            assert governed.reserve_blocks == uncapped
        else:
            assert governed.reserve_blocks == max(low, high)
            return  # from the cap on, it falls from the cap


def test_thrash_raises_the_reserve_that_admissions_and_stats_use():
    rig = Rig(config(100, reserve=0.02, max_num_seqs=16, prefix_cache=False))
    for index in range(16):
        rig.add(request(f"r{index}", tokens(100, seed=index), max_tokens=500))
    for step in range(300):
        if step % 8 == 7:
            rig.forced.request_ids = {f"r{index}" for index in range(16)}
        rig.step()
    assert rig.core.stats().reserve_blocks == 3
    assert rig.core.stats().kv_tokens == (100 - 2) * 16  # what fits an idle engine has not changed
    for _ in range(60):  # the rig checks every admission against the current reserve
        rig.step()


def test_the_reserve_stays_where_it_is_while_nothing_is_recomputed():
    rig = Rig(config(100, reserve=0.02))
    for index in range(8):
        rig.add(request(f"r{index}", tokens(40, seed=index), max_tokens=60))
    rig.drain()
    assert {report.num_preempted for report in rig.reports} == {0}
    assert rig.core.stats().reserve_blocks == 2
