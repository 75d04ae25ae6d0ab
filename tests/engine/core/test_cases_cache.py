"""The prefix cache's acceptance cases (A, and D4), under their numbers in the design notes."""

import os
import subprocess
import sys
from dataclasses import replace
from uuid import UUID

import pytest

from engine.core.batch import BlockCopy
from engine.core.block_hash import BlockHasher
from engine.core.errors import NamespaceInUse
from engine.core.request import RequestStatus
from engine.runner.fake import FakeRunnerError
from tenancy.namespace import NamespaceKey, NamespaceKind, derive
from tests.engine.core import cache_rig
from tests.engine.core.cache_rig import CacheRig, cache_config, known
from tests.engine.core.rig import Rig, config, request, tokens


def cached(rig: Rig, request_id: str, prompt, **changes) -> int:
    return rig.run(request(request_id, prompt, **changes)).num_cached_tokens


def test_a1_a_shared_prefix_takes_one_new_block_and_its_tail_is_evicted_first():
    rig = Rig(config(10))
    first = rig.add(request("first", tokens(55), max_tokens=9))
    rig.step()
    assert len(first.block_tables[0]) == 4
    assert first.num_committed_blocks == 3

    second = rig.add(request("second", (*tokens(48), *tokens(7, seed=3)), max_tokens=9))
    rig.step()
    assert second.block_tables[0][:3] == first.block_tables[0][:3]
    assert rig.core.stats().held_blocks == 5
    assert [rig.pool.ref_count(block) for block in first.block_tables[0]] == [2, 2, 2, 1]

    head_to_tail = first.block_tables[0][:3]
    rig.drain()
    assert rig.pool.num_idle == 10
    order = [block for block in rig.pool.eviction_order() if block in head_to_tail]
    assert order == head_to_tail[::-1]


def test_a2_a_fully_cached_prompt_still_computes_its_last_block():
    rig = Rig(config(20))
    assert cached(rig, "cold", tokens(64)) == 0
    before = rig.core.stats().computed_tokens
    warm = request("warm", tokens(64), max_tokens=1)
    assert rig.run(warm).num_cached_tokens == 48
    assert rig.core.stats().computed_tokens - before == 16
    rig.assert_output(warm)


def test_a3_a_refused_admission_changes_no_reference_and_no_order():
    rig = Rig(config(8, max_num_seqs=4))
    rig.run(request("warm", tokens(48), max_tokens=1))
    rig.add(request("holder", tokens(70, seed=1), max_tokens=20))
    rig.step()
    order = rig.pool.eviction_order()
    references = [rig.pool.ref_count(block) for block in range(8)]
    refused = rig.add(request("refused", (*tokens(48), *tokens(60, seed=2))))
    rig.step()  # the first hits exist, the rest does not fit
    assert refused.status is RequestStatus.WAITING
    assert rig.pool.eviction_order() == order
    assert [rig.pool.ref_count(block) for block in range(8)] == references


@pytest.mark.parametrize(("first", "second"), [("t1", "t2"), ("t2", "t1"), ("t1", "")])
def test_a4_namespaces_are_worlds_apart_in_both_directions(first, second):
    rig = Rig(config(40))
    assert cached(rig, "cold", tokens(64), namespace=first) == 0
    assert cached(rig, "stranger", tokens(64), namespace=second) == 0
    assert cached(rig, "same", tokens(64), namespace=first) == 48
    assert cached(rig, "stranger again", tokens(64), namespace=second) == 48


def test_a7_a_scored_prompt_skips_the_lookup_but_not_the_insert():
    rig = CacheRig(cache_config(20))
    rig.free(rig.run(cache_rig.request("warm", tokens(64))))
    scored = cache_rig.request("scored", tokens(64), prompt_logprobs=2)
    assert rig.cache.caches(scored)
    assert not rig.cache.looks_up(scored)
    assert rig.admit(scored)
    assert scored.num_computed_tokens == 0  # every position is computed, as when cold
    rig.compute(scored)
    other = cache_rig.request("other", tokens(64, seed=1), prompt_logprobs=0)
    rig.run(other)
    rig.free(scored, other)
    follower = cache_rig.request("follower", tokens(64, seed=1))
    assert rig.admit(follower)
    assert follower.num_computed_tokens == 48


def test_a7_a_scored_prompt_changes_no_hit_counter():
    rig = Rig(config(40))
    rig.run(request("warm", tokens(64)))
    before = rig.core.stats()
    scored = request("scored", tokens(64))
    scored.sampling = replace(scored.sampling, prompt_logprobs=3)
    rig.run(scored)
    after = rig.core.stats()
    assert after.computed_tokens - before.computed_tokens == 64 + 3
    assert after.prefix_query_tokens == before.prefix_query_tokens == 64
    assert after.prefix_hit_tokens == before.prefix_hit_tokens == 0
    assert sum(len(part.logprobs) for report in rig.reports for part in report.scored) == 63


def test_a8_a_namespace_is_erased_only_when_no_request_of_it_runs():
    rig = CacheRig(cache_config(40))
    other = rig.run(cache_rig.request("other", tokens(64), "tenant-b"))
    running = cache_rig.request("running", tokens(64))
    assert rig.admit(running)
    with pytest.raises(NamespaceInUse):  # though it has nothing in the cache yet
        rig.cache.erase("tenant-a")
    rig.compute(running)
    state = rig.state()
    with pytest.raises(NamespaceInUse) as refusal:
        rig.cache.erase("tenant-a")
    assert rig.state() == state
    assert refusal.value.num_requests == 1
    assert "tenant-a" not in str(refusal.value)
    rig.free(running, other)
    assert rig.pool.num_cached == 8
    assert rig.cache.erase("tenant-a") == 4
    rig.check()
    assert [rig.pool.find(key) for key in running.block_keys] == [None] * 4
    assert [rig.pool.find(key) is None for key in other.block_keys] == [False] * 4
    assert rig.cache.erase("tenant-a") == 0
    rig.twin.erase("tenant-a")
    assert rig.admit(running)
    assert running.num_computed_tokens == 0


def test_a8_a_waiting_request_does_not_stand_in_the_way():
    rig = CacheRig(cache_config(4))
    preempted = rig.run(cache_rig.request("preempted", tokens(40)))
    rig.free(preempted)
    assert rig.cache.erase("tenant-a") == rig.twin.erase("tenant-a") == 2
    assert rig.admit(preempted)
    assert preempted.num_computed_tokens == 0
    rig.compute(preempted)


GROUP = UUID(int=7)


def key_for(deployment_id: str) -> str:
    """The key of one block of a tenant of this deployment."""
    secret = NamespaceKey.for_epoch(bytes(32), deployment_id, 1)
    namespace = derive(secret, kind=NamespaceKind.TENANT, group_id=GROUP, generation=1)
    return BlockHasher(bytes(32), 16).keys(namespace, None, range(16))[0].hex()


def test_a9_two_deployments_have_different_keys_and_two_processes_of_one_the_same():
    assert len({key_for("one"), key_for("two"), key_for("One")}) == 3
    code = "from tests.engine.core.test_cases_cache import key_for; print(key_for('one'))"
    for seed in ("1", "2"):
        other = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert other.stdout.strip() == key_for("one")


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_d4_a_child_writes_to_a_copy_of_the_shared_partial_block(prefix_cache):
    rig = CacheRig(cache_config(12, prefix_cache=prefix_cache))
    prompt = tokens(40)
    alone = rig.run(cache_rig.request("alone", prompt))
    for _ in range(20):
        rig.compute(alone)
    expected = known(alone)
    rig.free(alone)

    sibling = rig.run(cache_rig.request("sibling", prompt, "tenant-b"))
    child = cache_rig.request("child", prompt, "tenant-b")
    copies = rig.fork(sibling, child)
    shared, own = sibling.block_tables[0], child.block_tables[0]
    assert shared[:2] == own[:2]
    assert copies == (BlockCopy(shared[2], own[2]),)
    assert [rig.pool.ref_count(block) for block in (*shared, own[2])] == [2, 2, 1, 1]
    assert child.num_computed_tokens == 39  # the last prompt token's logits are its own
    rig.compute(child)
    child.output_token_ids[-1] = 999  # another draw than the sibling's
    for _ in range(20):
        rig.compute(child)
        rig.compute(sibling)
    assert known(sibling) == expected
    assert known(child)[:41] == [*prompt, 999]


def test_d4_without_the_copy_the_runner_would_notice():
    rig = CacheRig(cache_config(12))
    sibling = rig.run(cache_rig.request("sibling", tokens(40)))
    child = cache_rig.request("child", tokens(40))
    assert rig.fork(sibling, child)
    rig._copies.clear()
    with pytest.raises(FakeRunnerError, match="block 3 does not hold"):
        rig.compute(child)
