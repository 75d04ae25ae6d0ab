"""Pinned prefixes stay, within their quarter of the pool, until a request could not run at all."""

import pytest

from engine.core.errors import PinLimit
from engine.core.request import RequestStatus
from tests.engine.core.cache_rig import CacheRig, cache_config, request
from tests.engine.core.rig import Rig, config, tokens
from tests.engine.core.rig import request as core_request

SYSTEM = tuple(range(100, 150))  # 3 full blocks and a bit


def warm(rig: CacheRig, prompt=SYSTEM, namespace: str = "tenant-a") -> None:
    rig.free(rig.run(request(f"{namespace} {prompt}", prompt, namespace)))


def flood(rig: CacheRig) -> None:
    """Take every idle block and give it back without a key."""
    rig.pool.release(rig.pool.allocate(rig.pool.num_idle))


def test_a_pinned_prefix_outlives_a_flood_and_an_unpinned_one_does_not():
    rig = CacheRig(cache_config(16))
    warm(rig)
    assert rig.cache.pin("tenant-a", SYSTEM) == 48
    assert (rig.pool.num_pinned, rig.pool.num_cached, rig.pool.num_idle) == (3, 3, 13)
    flood(rig)
    follower = request("follower", (*SYSTEM, 1, 2))
    rig.admit(follower)
    assert follower.num_computed_tokens == 48
    assert (rig.pool.num_pinned, rig.pool.num_held) == (3, 4)
    rig.compute(follower)
    rig.free(follower)
    assert rig.cache.unpin("tenant-a", SYSTEM) == 48
    assert rig.cache.unpin("tenant-a", SYSTEM) == 0
    flood(rig)
    assert rig.pool.num_cached == 0
    rig.check()


def test_only_what_is_cached_in_that_namespace_is_pinned():
    rig = CacheRig(cache_config(16))
    warm(rig, SYSTEM[:20])
    assert rig.cache.pin("tenant-b", SYSTEM) == 0
    assert rig.cache.pin("tenant-a", SYSTEM[:15]) == 0
    assert rig.cache.pin("tenant-a", SYSTEM) == 16
    assert rig.pool.num_pinned == 1
    rig.check()


def test_pinning_again_pins_no_more_but_what_was_cached_since():
    rig = CacheRig(cache_config(16))
    warm(rig, SYSTEM[:20])
    assert rig.cache.pin("tenant-a", SYSTEM) == 16
    warm(rig, SYSTEM)
    assert rig.cache.pin("tenant-a", SYSTEM) == 48
    assert rig.cache.pin("tenant-a", SYSTEM) == 48
    assert rig.cache.unpin("tenant-a", SYSTEM) == 48
    assert rig.pool.num_pinned == 0
    rig.check()


def test_prefixes_that_share_blocks_are_pinned_each_for_itself():
    rig = CacheRig(cache_config(16))
    warm(rig)
    assert rig.cache.pin("tenant-a", SYSTEM[:32]) == 32
    assert rig.cache.pin("tenant-a", SYSTEM) == 48
    assert rig.cache.unpin("tenant-a", SYSTEM) == 48
    assert rig.pool.num_pinned == 2
    rig.check()


def test_at_most_a_quarter_of_the_pool_can_be_pinned():
    rig = CacheRig(cache_config(15))
    warm(rig)
    warm(rig, SYSTEM, "tenant-b")
    assert rig.cache.pin("tenant-a", SYSTEM) == 48
    before = rig.state()
    with pytest.raises(PinLimit) as refusal:
        rig.cache.pin("tenant-b", SYSTEM)
    assert (refusal.value.num_blocks, refusal.value.limit) == (6, 3)
    assert rig.state() == before
    rig.check()


def test_erasing_a_namespace_takes_its_pins_and_no_others():
    rig = CacheRig(cache_config(24))
    for namespace in ("tenant-a", "tenant-b"):
        warm(rig, SYSTEM, namespace)
        rig.cache.pin(namespace, SYSTEM)
    assert rig.cache.erase("tenant-a") == 3
    assert (rig.pool.num_pinned, rig.pool.num_free) == (3, 21)
    assert rig.cache.unpin("tenant-a", SYSTEM) == 0
    assert rig.cache.unpin("tenant-b", SYSTEM) == 48
    rig.check()


def test_a_held_pinned_block_is_not_freed_by_a_preemption():
    rig = CacheRig(cache_config(16))
    wanted = rig.run(request("holder", SYSTEM[:32]))
    rig.cache.pin("tenant-a", SYSTEM[:32])
    assert not rig.cache.frees_a_block(wanted)
    rig.cache.unpin("tenant-a", SYSTEM[:32])
    assert rig.cache.frees_a_block(wanted)


def test_page_groups_pin_what_their_windows_need():
    rig = CacheRig(cache_config(20, windows=(None, 16)))
    warm(rig)
    assert rig.cache.pin("tenant-a", SYSTEM) == 48
    assert rig.pool.num_pinned == 3 + 1
    flood(rig)
    follower = request("follower", (*SYSTEM, 1))
    rig.admit(follower)
    assert follower.num_computed_tokens == 48


def test_pins_give_way_to_a_request_that_fits_only_an_empty_pool():
    rig = Rig(config(16))
    rig.run(core_request("warm", tokens(50)))
    cache = rig.core._kv_cache
    assert cache.pin("tenant-a", tokens(50)) == 48
    small = rig.add(core_request("small", tokens(150, seed=1), max_tokens=3))
    rig.step()
    assert (small.status, rig.pool.num_pinned) == (RequestStatus.RUNNING, 3)
    whole = rig.add(core_request("whole", tokens(255, seed=2), max_tokens=1))
    rig.drain()
    assert whole.status is RequestStatus.FINISHED
    assert rig.pool.num_pinned == 0
    rig.assert_output(whole)


def test_pins_give_way_before_the_oldest_yields_to_a_newer_request():
    rig = Rig(config(16))
    oldest = rig.add(core_request("oldest", tokens(191, seed=1), max_tokens=60))
    newer = rig.add(core_request("newer", tokens(64, seed=2), max_tokens=30))
    rig.step()
    assert rig.core.pin("tenant-a", newer.prompt_token_ids) == 64
    rig.drain()
    assert (oldest.num_preemptions, newer.num_preemptions) == (0, 1)
    assert rig.pool.num_pinned == 0
    rig.assert_output(oldest)
    rig.assert_output(newer)
