"""The prefix cache as requests see it, through the core."""

from tests.engine.core.rig import Rig, config, request, tokens


def cached(rig: Rig, request_id: str, prompt, **changes) -> int:
    return rig.run(request(request_id, prompt, **changes)).num_cached_tokens


def test_a_500_token_prompt_hits_496_the_second_time():
    rig = Rig(config(80))
    assert cached(rig, "cold", tokens(500)) == 0
    assert cached(rig, "warm", tokens(500)) == 496
    stats = rig.core.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (1000, 496)


def test_opting_out_neither_hits_nor_inserts():
    rig = Rig(config(40))
    assert cached(rig, "private", tokens(64), use_cache=False) == 0
    assert rig.core.stats().cached_blocks == 0
    assert cached(rig, "cold", tokens(64)) == 0
    assert cached(rig, "private again", tokens(64), use_cache=False) == 0
    assert cached(rig, "warm", tokens(64)) == 48
    assert rig.core.stats().prefix_query_tokens == 128


def test_without_a_prefix_cache_nothing_is_ever_cached():
    rig = Rig(config(40, prefix_cache=False))
    assert cached(rig, "one", tokens(64)) == 0
    assert cached(rig, "two", tokens(64)) == 0
    stats = rig.core.stats()
    assert (stats.cached_blocks, stats.prefix_query_tokens) == (0, 0)


def test_output_blocks_are_hits_for_the_next_turn_of_a_conversation():
    rig = Rig(config(40))
    turn = rig.run(request("turn", tokens(20), max_tokens=30))
    following = (*rig.known(turn), *tokens(10, seed=4))
    assert cached(rig, "next turn", following) == 48  # 49 of the 50 known tokens were computed


def test_a_block_is_shared_as_soon_as_it_is_computed_and_not_before():
    rig = Rig(config(40, max_num_batched_tokens=32, max_num_seqs=4))
    long = rig.add(request("long", tokens(80), max_tokens=20))
    rig.step()
    assert long.num_computed_tokens == 32
    assert len(long.block_tables[0]) == 5
    rig.step()  # 64 of 80 computed
    rig.step()  # 80: only 16 were left, the budget's other half is for the newcomer
    twin = rig.add(request("twin", tokens(80), max_tokens=20))
    rig.step()
    assert twin.num_cached_tokens == 64
    rig.drain()


def test_identical_requests_in_one_step_do_not_share_but_cache_one_copy():
    rig = Rig(config(40))
    for name in ("one", "two"):
        rig.add(request(name, tokens(64), max_tokens=2))
    rig.drain()
    assert rig.core.stats().cached_blocks == 4
    assert [wanted.num_cached_tokens for wanted in rig.requests.values()] == [0, 0]


def test_keys_are_hashed_once_however_often_the_request_is_preempted(monkeypatch):
    rig = Rig(config(40))
    hasher = rig.core._kv_cache._hasher
    hashed = []

    class Counting:
        def keys(self, namespace, parent, token_ids):
            keys = hasher.keys(namespace, parent, token_ids)
            hashed.extend(keys)
            return keys

    monkeypatch.setattr(rig.core._kv_cache, "_hasher", Counting())
    rig.add(request("busy", tokens(40), max_tokens=60))
    for step in range(40):
        if step % 5 == 4:
            rig.forced.request_ids = {"busy"}
        rig.step()
    rig.drain()
    assert len(hashed) == len(set(hashed)) == (40 + 60 - 1) // 16
    rig.assert_output(rig.requests["busy"])


def test_computed_blocks_survive_an_abort():
    rig = Rig(config(40))
    rig.add(request("gone", tokens(64), max_tokens=50))
    rig.step()
    assert rig.core.abort("gone")
    assert cached(rig, "retry", tokens(64)) == 48
