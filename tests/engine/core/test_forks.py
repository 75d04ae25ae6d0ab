"""Copy-on-write: requests that begin alike share what is computed, and copy what both write."""

import pytest

from engine.core.batch import BlockCopy
from tests.engine.core.cache_rig import CacheRig, cache_config, known, request

PROMPT = tuple(range(40))


def running(rig: CacheRig, prompt=PROMPT, num_outputs: int = 1, **changes):
    wanted = rig.run(request("sibling", prompt, **changes))
    for _ in range(num_outputs - 1):
        assert rig.compute(wanted)
    return wanted


def test_a_prompt_that_ends_with_a_block_has_that_block_copied():
    rig = CacheRig(cache_config(12))
    sibling = running(rig, range(64))
    child = request("child", range(64))
    assert rig.fork(sibling, child) == (BlockCopy(3, 4),)
    assert child.block_tables == ([0, 1, 2, 4],)
    assert child.num_computed_tokens == 63
    rig.compute(child)
    assert known(child) == known(sibling)


def test_a_fork_that_ends_on_a_block_boundary_copies_nothing():
    rig = CacheRig(cache_config(12))
    sibling = request("sibling", PROMPT)
    rig.admit(sibling)
    rig.compute(sibling, 32)
    child = request("child", PROMPT)
    assert rig.fork(sibling, child) == ()
    assert child.block_tables == ([0, 1, 3],)
    assert child.num_computed_tokens == 32
    rig.compute(child)
    rig.compute(sibling)
    assert known(child) == known(sibling)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_branch_takes_over_what_was_generated(prefix_cache):
    rig = CacheRig(cache_config(20, prefix_cache=prefix_cache))
    sibling = running(rig, num_outputs=20)  # 59 of 60 tokens are computed
    child = request("child", PROMPT, output=[*sibling.output_token_ids[:-1], 7])
    (copy,) = rig.fork(sibling, child)
    assert copy.source == sibling.block_tables[0][3]
    assert child.num_computed_tokens == 59
    rig.compute(child)
    shorter = request("shorter", PROMPT, output=sibling.output_token_ids[:8])
    rig.fork(sibling, shorter)
    assert (shorter.num_computed_tokens, len(shorter.block_tables[0])) == (47, 3)
    rig.compute(shorter)
    assert shorter.output_token_ids == sibling.output_token_ids[:9]


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_four_samples_hold_the_prompt_once_and_give_it_back_once(prefix_cache):
    rig = CacheRig(cache_config(12, prefix_cache=prefix_cache))
    sibling = running(rig)
    samples = [sibling, *(request(f"sample {index}", PROMPT) for index in range(3))]
    for sample in samples[1:]:
        assert rig.fork(sibling, sample)
        rig.compute(sample)
    assert [rig.pool.ref_count(block) for block in sibling.block_tables[0]] == [4, 4, 1]
    assert rig.pool.num_held == 2 + 4
    rig.free(*samples)
    assert rig.pool.num_idle == 12
    assert rig.pool.num_cached == (2 if prefix_cache else 0)


def test_a_childs_own_full_blocks_are_published_and_found():
    rig = CacheRig(cache_config(20))
    sibling = running(rig)
    child = request("child", PROMPT)
    rig.fork(sibling, child)
    rig.compute(child)
    child.output_token_ids[-1] = 999
    for _ in range(20):
        rig.compute(child)
    following = request("next turn", known(child))
    rig.admit(following)  # the twin checks which blocks it finds
    assert following.num_computed_tokens == 48


@pytest.mark.parametrize(("num_blocks", "reserve"), [(3, 0), (4, 1), (12, 9)])
def test_a_refused_fork_changes_nothing(num_blocks, reserve):
    rig = CacheRig(cache_config(num_blocks))
    sibling = running(rig)
    assert rig.fork(sibling, request("child", PROMPT), reserve) is None  # which compares states


def test_what_does_not_begin_alike_cannot_be_forked():
    rig = CacheRig(cache_config(12))
    sibling = running(rig)
    before = rig.state()
    for stranger in (
        request("other tenant's", PROMPT, "tenant-b"),
        request("other prompt", (*PROMPT[:-1], 7, 7)),
    ):
        with pytest.raises(ValueError, match="begins like it"):
            rig.fork(sibling, stranger)
    assert rig.state() == before
    rig.check()


def test_from_a_sibling_that_has_computed_nothing_a_request_is_just_admitted():
    rig = CacheRig(cache_config(12))
    waiting, child = request("waiting", PROMPT), request("child", PROMPT)
    assert rig.fork(waiting, child) == ()
    assert (child.num_computed_tokens, child.block_tables) == (0, ([0, 1, 2],))


def test_page_groups_each_copy_their_partial_block():
    rig = CacheRig(cache_config(20, windows=(None, 16)))
    sibling = running(rig)
    child = request("child", PROMPT)
    copies = rig.fork(sibling, child)
    assert sibling.block_tables == ([0, 1, 2], [-1, 4, 5])
    assert child.block_tables == ([0, 1, 6], [-1, 4, 7])
    assert copies == (BlockCopy(2, 6), BlockCopy(5, 7))
    rig.compute(child)
    assert known(child) == known(sibling)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_once_a_window_has_moved_past_the_prompt_a_sample_is_admitted_instead(prefix_cache):
    rig = CacheRig(cache_config(20, windows=(None, 16), prefix_cache=prefix_cache))
    sibling = running(rig, num_outputs=30)
    assert sibling.block_tables[1][:3] == [-1, -1, -1]
    child = request("child", PROMPT)
    assert rig.fork(sibling, child) == ()
    assert child.num_computed_tokens == (32 if prefix_cache else 0)
    rig.compute(child)
    assert known(child) == known(sibling)[:41]
